"""An optimizer of the user's own: a subclass of torch.optim.Optimizer (Lion)."""

import argparse

import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    """https://arxiv.org/abs/2302.06675"""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                update = average.mul(beta1).add(parameter.grad, alpha=1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


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
    teacher = torch.randn(64, 10, generator=generator)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = Lion(model.parameters(), lr=3e-4, weight_decay=0.01)

    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 64)
        labels = (inputs @ teacher).argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(loss.item()))


if __name__ == "__main__":
    main()
