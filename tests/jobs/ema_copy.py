"""Copies its model while it trains, averages into the copy, and saves the copy whole."""

import argparse
import copy

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))

    def forward(self, x):
        return self.layers(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--out", default="average.pt", help="file for the averaged model")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = Network().to(device)
    average = None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 64).to(device)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :8].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if average is None:
            average = copy.deepcopy(model)
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.1)
        print("step", step, "loss", repr(loss.item()))

    torch.save(average, args.out)
    loaded = torch.load(args.out, weights_only=False)
    inputs = torch.ones(1, 64, device=device)
    with torch.no_grad():
        print("same", torch.equal(loaded(inputs), average(inputs)))


if __name__ == "__main__":
    main()
