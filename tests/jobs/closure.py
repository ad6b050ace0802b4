"""Optimizers that are given a closure: LBFGS calls it several times in a step, SGD once."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--optimizer", choices=["lbfgs", "sgd"], default="lbfgs")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(512, 16, generator=generator).to(device)
    targets = torch.sin(3 * inputs.sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
    if args.optimizer == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for step in range(1, args.steps + 1):
        loss = optimizer.step(closure)
        print("step", step, "loss", repr(loss.item()))


if __name__ == "__main__":
    main()
