"""Gradient accumulation: four batches in each step, the last step of an epoch shorter."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(count=1056):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 128, generator=generator)
    targets = torch.sin(inputs @ torch.randn(128, 8, generator=generator) / 8)
    return TensorDataset(inputs, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--accumulation", type=int, default=4)
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = nn.Sequential(
        nn.Linear(128, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 8)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(make_data(), batch_size=32, shuffle=True)

    step, total = 0, 0.0
    while step < args.steps:
        for index, (inputs, targets) in enumerate(loader):
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            (loss / args.accumulation).backward()
            total += loss.item() / args.accumulation
            if (index + 1) % args.accumulation == 0 or index + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                print("step", step, "loss", repr(total))
                total = 0.0
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
