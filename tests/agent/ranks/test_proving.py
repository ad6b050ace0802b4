"""What a proof takes for rounding, and what it does not; the rehearsal, which proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked
from flatout_agent import wire

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
PLAIN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(9, 4)
for number in range(6):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number, loss.item(), flush=True)
"""


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


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_rehearses_alone(rank: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    done = ranked.alone(tmp_path, ["train.py"], rank=rank, size=3)
    assert done.codes == (0,), done.errors
    assert done.faults == []
    (region,) = done.seen.regions
    assert (region.cut, region.rows, done.seen.backend) == (True, 9, "")
    weights = sum((4 * 8 + 8, 8 + 8, 8 + 1))
    assert done.seen.summed_bytes >= 4 * weights
    assert done.seen.joined_bytes >= 4 * 3
    assert done.seen.messages >= 4  # normalisation forward and backward, the output, gradients


def test_what_is_exchanged_is_counted_alike(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    together = ranked.run(tmp_path, [str(tmp_path / "train.py")], 2).seen
    alone = ranked.alone(tmp_path, ["train.py"], rank=0, size=2).seen
    assert isinstance(alone, wire.RanksSeen)
    assert alone.summed_bytes == pytest.approx(together.summed_bytes, abs=100)  # checks aside
    assert alone.joined_bytes == pytest.approx(together.joined_bytes, rel=0.1)
    assert alone.messages == pytest.approx(together.messages, abs=1.0)
