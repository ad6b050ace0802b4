"""What a proof takes for rounding, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked

pytestmark = pytest.mark.slow

DEEP = """
import torch
from torch import nn
from flatout_agent.ranks import proving

proving.GRADIENT_TOLERANCE = 1e-12  # the least rounding asks what rounding does to the whole batch

class Normalised(nn.Sequential):
    pass

class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 3)
    def forward(self, x):
        out = self.linear(x.flatten(1))
        mean = out.mean(0)
        return out + 0.02 * (mean - mean.detach())  # the value of the rows alone, not the gradient

blocks = []
for _ in range(4):
    blocks += [nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()]
images = torch.randn(16, 3, 8, 8)
for model in (Normalised(*blocks, nn.Flatten(), nn.Linear(192, 3)), Shifted()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = [each.clone() for each in model.parameters()]
    for step in range(3):
        loss = model(images).square().mean()
        if step == 0:
            assert all(torch.equal(*pair) for pair in zip(weights, model.parameters()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, loss.item())
"""


@pytest.mark.thorough
def test_rounding_is_no_other_gradient(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEEP)
    done = ranked.run(tmp_path, [str(tmp_path / "train.py")])
    assert done.codes == (0, 0), done.errors
    assert done.faults == []
    cut = {region.model: region for region in done.seen.regions}
    assert cut["Normalised"].cut
    assert 1e-12 < (cut["Normalised"].gradient_error or 0.0) < 1e-4
    assert not cut["Shifted"].cut
    assert "gradients differ" in cut["Shifted"].reason
