"""A loop whose optimizer calls forward and backward itself, as LBFGS and Lightning do."""

from __future__ import annotations

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(384, 384) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(1024, 384)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    return loss


for _ in range(400):
    optimizer.step(closure)
