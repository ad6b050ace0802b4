"""A loop without an optimizer: a class of the script's own computes Adam, weight by weight."""

from __future__ import annotations

import torch


class Adam:
    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.weights = weights
        self.first = [torch.zeros_like(weight) for weight in weights]
        self.second = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        for i, weight in enumerate(self.weights):
            gradient = weight.grad + 1e-4 * weight
            self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
            self.second[i] = 0.999 * self.second[i] + 0.001 * gradient * gradient
            change = self.first[i] / (self.second[i].sqrt() + 1e-8)
            weight.copy_(weight - 1e-3 * change)  # fault: update
            weight.grad = None


def main() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = Adam(list(model.parameters()))
    inputs, targets = torch.randn(64, 32), torch.rand(64, 32)
    for _ in range(400):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
