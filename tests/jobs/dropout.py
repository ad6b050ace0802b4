"""The forward pass draws random numbers: dropout after every layer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    inputs = torch.randn(1024, 128, generator=generator)
    labels = (inputs @ torch.randn(128, 10, generator=generator)).argmax(dim=1)
    model = nn.Sequential(
        nn.Linear(128, 768),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(768, 768),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(768, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=128, shuffle=True)

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
