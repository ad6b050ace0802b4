"""A small DCGAN on the 8x8 digits, blown up to 32x32."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1700)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--nz", type=int, default=64, help="size of the latent z vector")
parser.add_argument("--ngf", type=int, default=32)
parser.add_argument("--ndf", type=int, default=32)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--beta1", type=float, default=0.5)


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def main():
    opt = parser.parse_args()
    random.seed(opt.seed)
    np.random.seed(opt.seed)
    torch.manual_seed(opt.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    digits = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1)
    digits = F.interpolate(digits / 8 - 1, size=32, mode="bilinear", align_corners=False)
    loader = DataLoader(TensorDataset(digits), batch_size=64, shuffle=True, drop_last=True)

    net_g = Generator(opt.nz, opt.ngf).to(device).apply(weights_init)
    net_d = Discriminator(opt.ndf).to(device).apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))

    step = 0
    while step < opt.steps:
        for (real,) in loader:
            real = real.to(device)
            ones = torch.ones(real.size(0), device=device)
            zeros = torch.zeros(real.size(0), device=device)

            # (1) Update D: maximise log(D(x)) + log(1 - D(G(z)))
            net_d.zero_grad()
            loss_real = criterion(net_d(real), ones)
            loss_real.backward()
            noise = torch.randn(real.size(0), opt.nz, 1, 1, device=device)
            fake = net_g(noise)
            loss_fake = criterion(net_d(fake.detach()), zeros)
            loss_fake.backward()
            opt_d.step()

            # (2) Update G: maximise log(D(G(z)))
            net_g.zero_grad()
            loss_g = criterion(net_d(fake), ones)
            loss_g.backward()
            opt_g.step()

            step += 1
            loss_d = loss_real.item() + loss_fake.item()
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss_d:.8f} loss_g {loss_g.item():.8f}")
            if step >= opt.steps:
                break


if __name__ == "__main__":
    main()
