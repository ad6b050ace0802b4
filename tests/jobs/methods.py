"""A model that is never called itself: model.encode and model.decode are."""

import argparse

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2 * 16))
        self.decoder = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 256))

    def encode(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, code):
        return self.decoder(code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    basis = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(1, args.steps + 1):
        inputs = (torch.randn(256, 16) @ basis / 4).to(device)
        mean, log_variance = model.encode(inputs)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        fit = nn.functional.mse_loss(model.decode(code), inputs)
        spread = (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        loss = fit + 0.01 * spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(loss.item()))


if __name__ == "__main__":
    main()
