"""DCGAN on the sklearn digits: hand-optimised version of dcgan_digits.py (same data, order, noise, weights, optimizers).
"""
import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=64)
parser.add_argument("--nz", type=int, default=64, help="size of the latent z vector")
parser.add_argument("--ngf", type=int, default=32)
parser.add_argument("--ndf", type=int, default=32)
parser.add_argument("--niter", type=int, default=25, help="number of epochs to train for")
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--manualSeed", type=int, default=999)
opt = parser.parse_args()
print(opt)

random.seed(opt.manualSeed)
np.random.seed(opt.manualSeed)
torch.manual_seed(opt.manualSeed)
BF = os.environ.get("BF", "1") == "1"
CO = os.environ.get("CO", "1") == "1"


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def patches(x):
    """the 4x4 stride-2 patches of one-channel images: b, 64, 16"""
    return F.unfold(x, 4, stride=2, padding=1).transpose(1, 2)


class Generator(nn.Module):
    def __init__(self, nz, ngf, nc=1):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),   # 4x4
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),  # 8x8
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, nc, 4, 2, 1, bias=False),   # 16x16
            nn.Tanh(),
        )

    def forward(self, x):
        m = self.main
        w = m[0].weight                                     # a 1x1 input: a plain matmul
        x = (x.flatten(1) @ w.permute(0, 2, 3, 1).flatten(1)).view(-1, 4, 4, w.size(1)).permute(0, 3, 1, 2)
        x = m[1:6](x)
        return x.permute(0, 2, 3, 1).flatten(1, 2) @ m[6].weight.flatten(1)       # b, 64, 16: last layer but for the sum


class Discriminator(nn.Module):
    def __init__(self, ndf, nc=1):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),             # 8x8
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),        # 4x4
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),          # 1x1
            nn.Sigmoid(),
        )

    def forward(self, cols):                                # patches -> logits
        m = self.main
        x = (cols @ m[0].weight.flatten(1).t()).view(-1, 8, 8, m[0].weight.size(0)).permute(0, 3, 1, 2)
        x = m[1:5](x)
        w = m[5].weight                                     # a 1x1 output: a plain dot product
        return (x.permute(0, 2, 3, 1).flatten(1) @ w.permute(0, 2, 3, 1).reshape(-1, 1)).float()[:, 0]


images = torch.from_numpy(load_digits().images.astype(np.float32))[:, None] / 16.0          # n, c, h, w
images = (F.interpolate(images, size=(16, 16), mode="bilinear", align_corners=False) - 0.5) / 0.5
real_patches = patches(images).contiguous()

netG = Generator(opt.nz, opt.ngf)
netG.apply(weights_init)
netD = Discriminator(opt.ndf)
netD.apply(weights_init)
fixed_noise = torch.randn(64, opt.nz, 1, 1)
netG.to(memory_format=torch.channels_last)
netD.to(memory_format=torch.channels_last)

optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999), fused=True)
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999), fused=True)
frozenD = {k: v.detach() for k, v in netD.named_parameters()}      # same memory, no gradients


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=BF)


def generate(noise):
    with autocast():
        return netG(noise).float()


def to_image(cols):
    return torch.tanh(F.fold(cols.transpose(1, 2), (16, 16), 4, stride=2, padding=1))


def loss_D(real, fake):
    with autocast():
        a, b = netD(real), netD(fake)
    err = F.softplus(-a).mean() + F.softplus(b).mean()     # BCE(sigmoid(a), 1) + BCE(sigmoid(b), 0)
    return err, a.detach().sigmoid().mean(), b.detach().sigmoid().mean()


def loss_G(fake):
    with autocast():
        a = torch.func.functional_call(netD, frozenD, (fake,))
    return F.softplus(-a).mean(), a.detach().sigmoid().mean()


if CO:
    generate, loss_D, loss_G = (torch.compile(f, dynamic=False) for f in (generate, loss_D, loss_G))

n_batches = len(images) // opt.batchSize
for epoch in range(opt.niter):
    torch.empty((), dtype=torch.int64).random_()            # the DataLoader's base seed
    g = torch.Generator()
    g.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    batches = real_patches[torch.randperm(len(images), generator=g)].split(opt.batchSize)
    for i in range(n_batches):
        # (1) Update D
        fake = patches(to_image(generate(torch.randn(opt.batchSize, opt.nz, 1, 1))))
        errD, D_x, D_G_z1 = loss_D(batches[i], fake.detach())
        errD.backward()
        optimizerD.step()
        optimizerD.zero_grad()

        # (2) Update G
        errG, D_G_z2 = loss_G(fake)
        errG.backward()
        optimizerG.step()
        optimizerG.zero_grad()

        if i % 14 == 0:
            print("[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f"
                  % (epoch, opt.niter, i, n_batches, errD.item(), errG.item(), D_x, D_G_z1, D_G_z2))

netG.eval()
with torch.no_grad():
    samples = to_image(netG(fixed_noise)).numpy()
print("sample mean %.4f std %.4f" % (samples.mean(), samples.std()))
np.save("dcgan_samples.npy", samples)
torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, "dcgan_digits.pth")
