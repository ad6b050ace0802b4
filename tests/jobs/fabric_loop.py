"""A loop of the user's own with lightning.Fabric."""

import argparse

import torch
from lightning.fabric import Fabric
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

    fabric = Fabric(devices=1)
    fabric.launch()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 64, generator=generator)
    labels = (inputs @ torch.randn(64, 10, generator=generator)).argmax(dim=1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=64, shuffle=True)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)

    step = 0
    while step < args.steps:
        for batch, target in loader:
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()), flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
