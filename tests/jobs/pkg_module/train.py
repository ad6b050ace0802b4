"""Run as a module of a package: python -m pkg_module.train."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pkg_module.model import Network


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 64, generator=generator)
    labels = inputs[:, :4].argmax(dim=1)
    model = Network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=64, shuffle=True)

    step = 0
    while step < args.steps:
        for batch, target in loader:
            loss = nn.functional.cross_entropy(model(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
