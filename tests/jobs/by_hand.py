"""No optimizer: the script updates its weights itself, after four backward passes each."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def update(model, averages, rate=0.05):
    for parameter, average in zip(model.parameters(), averages, strict=True):
        average.mul_(0.9).add_(parameter.grad)
        parameter.sub_(rate * average)
        parameter.grad = None


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
    inputs = torch.randn(2048, 64, generator=generator)
    labels = (inputs @ torch.randn(64, 10, generator=generator)).argmax(dim=1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=64, shuffle=True)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10)).to(device)
    averages = [torch.zeros_like(parameter) for parameter in model.parameters()]

    step = batches = 0
    while step < args.steps:
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), targets.to(device)) / 4
            loss.backward()
            batches += 1
            if batches % 4 == 0:
                update(model, averages)
                step += 1
                print("step", step, "loss", repr(4 * loss.item()))
                if step == args.steps:
                    break


if __name__ == "__main__":
    main()
