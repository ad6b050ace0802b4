"""Activation checkpointing: each block is computed again in the backward pass."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 384)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(384), nn.Linear(384, 384), nn.GELU()) for _ in range(4)
        )
        self.last = nn.Linear(384, 8)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = Network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 64).to(device)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :8].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(loss.item()))


if __name__ == "__main__":
    main()
