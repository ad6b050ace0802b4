"""The script's own profiler, with stacks and shapes, is on for all of its steps."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile


def train(model: torch.nn.Module, tracer: profile, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(16, 32)
    with tracer:  # fault: profiler
        for _ in range(steps):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            tracer.step()


def main() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    tracer = profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True)
    train(torch.nn.Sequential(*layers), tracer, 60)
    with open("operators.txt", "a", encoding="utf-8") as file:
        calls = sum(row.count for row in tracer.key_averages() if row.key == "aten::addmm")
        file.write(f"{calls}\n")


if __name__ == "__main__":
    main()
