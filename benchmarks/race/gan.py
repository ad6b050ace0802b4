"""DCGAN as in PyTorch's tutorial, on made-up pictures of 64 x 64."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

NZ = 100


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NZ, ngf * 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 8),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input)


def sizes(small):
    """(pictures, batch, width of the networks)"""
    return (64, 8, 8) if small else (8192, 128, 64)


def make_pictures(count):
    coarse = torch.rand(count, 3, 8, 8) * 2 - 1
    return nn.functional.interpolate(coarse, size=64, mode="bilinear", align_corners=False)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(999)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count, batch_size, width = sizes(args.small)
    dataset = TensorDataset(make_pictures(count))
    dataloader = DataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=0 if args.small else 2
    )
    netG = Generator(width).to(device).apply(weights_init)  # noqa: N806
    netD = Discriminator(width).to(device).apply(weights_init)  # noqa: N806
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N806
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N806

    step = 0
    D_losses, G_losses = [], []  # noqa: N806
    while step < args.steps:
        for data in dataloader:
            # Update D: maximise log(D(x)) + log(1 - D(G(z)))
            netD.zero_grad()
            real = data[0].to(device)
            label = torch.full((real.size(0),), 1.0, device=device)
            output = netD(real).view(-1)
            errD_real = criterion(output, label)  # noqa: N806
            errD_real.backward()
            noise = torch.randn(real.size(0), NZ, 1, 1, device=device)
            fake = netG(noise)
            label.fill_(0.0)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)  # noqa: N806
            errD_fake.backward()
            errD = errD_real + errD_fake  # noqa: N806
            optimizerD.step()

            # Update G: maximise log(D(G(z)))
            netG.zero_grad()
            label.fill_(1.0)
            output = netD(fake).view(-1)
            errG = criterion(output, label)  # noqa: N806
            errG.backward()
            optimizerG.step()

            D_losses.append(errD.item())
            G_losses.append(errG.item())
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {D_losses[-1]:.6f} generator {G_losses[-1]:.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
