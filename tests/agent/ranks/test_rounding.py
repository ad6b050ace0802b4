"""A process whose gradients are disturbed, beside the same one as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked

pytestmark = pytest.mark.slow
PROGRAM = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
norm = torch.zeros(())
for step in range(8):
    batch = torch.randn(16, 20)
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    if step % 2:
        loss.backward()
    else:
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
    optimizer.step()
    print("step", step, "loss", loss.item())
print("next", torch.rand(1).item())
"""


@pytest.mark.thorough
def test_losses_move_away_after_the_first_step_and_random_numbers_stay(tmp_path: Path) -> None:
    for name in ("plain", "disturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(PROGRAM)
    plain = ranked.run(tmp_path / "plain", ["train.py"], 1)
    disturbed = ranked.disturbed(tmp_path / "disturbed", ["train.py"], 1e-3)
    assert (plain.codes, disturbed.codes) == ((0,), (0,)), disturbed.errors
    first, second = ranked.losses(plain.outputs[0]), ranked.losses(disturbed.outputs[0])
    errors = [abs(a - b) / a for a, b in zip(first, second, strict=True)]
    assert errors[0] == 0.0
    assert all(1e-7 < error < 1e-1 for error in errors[1:])
    assert plain.outputs[0].splitlines()[-1] == disturbed.outputs[0].splitlines()[-1]
