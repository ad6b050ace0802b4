"""Two heads on one trunk, two losses, backward called twice in each step."""

import argparse

import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.kind = nn.Linear(512, 8)
        self.size = nn.Linear(512, 1)

    def forward(self, x):
        features = self.trunk(x)
        return self.kind(features), self.size(features)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = TwoHeads().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 64).to(device)
        kind, size = model(inputs)
        kind_loss = nn.functional.cross_entropy(kind, inputs[:, :8].argmax(dim=1))
        size_loss = nn.functional.mse_loss(size, inputs.square().mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        kind_loss.backward(retain_graph=True)
        size_loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(kind_loss.item() + size_loss.item()))


if __name__ == "__main__":
    main()
