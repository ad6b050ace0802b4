"""Two models, two optimizers: a generator and a discriminator of points on a circle."""

import argparse

import torch
from torch import nn


def real_points(count):
    angles = torch.rand(count) * 2 * torch.pi
    return torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(count, 2)


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    generator = network(16, 2).to(device)
    discriminator = network(2, 1).to(device)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(256, 1, device=device), torch.zeros(256, 1, device=device)

    for step in range(1, args.steps + 1):
        real = real_points(256).to(device)
        fake = generator(torch.randn(256, 16).to(device))
        d_loss = criterion(discriminator(real), ones)
        d_loss = d_loss + criterion(discriminator(fake.detach()), zeros)
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()

        g_loss = criterion(discriminator(fake), ones)
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        print("step", step, "loss", repr(d_loss.item() + g_loss.item()))


if __name__ == "__main__":
    main()
