"""What ranks cannot train rightly ends with a reason; what the ranks save stays apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked
from flatout.running.one.ring import Ring, rings
from flatout_agent import wire

pytestmark = pytest.mark.slow

START = """
import os, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4)
def train(steps):
    for number in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", number, loss.item(), flush=True)
"""


def run(folder: Path, program: str) -> ranked.Ranked:
    script = folder / "train.py"
    script.write_text(START + program)
    return ranked.run(folder, [str(script)], 2, 60.0)


def test_batches_that_differ_between_the_ranks(tmp_path: Path) -> None:
    done = run(tmp_path, "x = torch.tensor(list(os.urandom(32))).view(8, 4) / 255\ntrain(3)")
    assert done.codes == (wire.REFUSED_EXIT, wire.REFUSED_EXIT)
    assert "batches differ" in done.refused[0].reason
    assert done.refused[0].next_step
    assert "step" not in done.outputs[0]


@pytest.mark.thorough
def test_sparse_gradients(tmp_path: Path) -> None:
    program = """
model = nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.arange(8)
train(3)
"""
    done = run(tmp_path, program)
    assert set(done.codes) <= {wire.REFUSED_EXIT, wire.LOST_EXIT}
    assert any("sparse" in refusal.reason for refusal in done.refused)


def test_an_error_of_the_script_is_the_scripts(tmp_path: Path) -> None:
    done = run(tmp_path, "train(3)\nraise ValueError('mine')")
    assert done.codes == (1, 1)
    assert "ValueError: mine" in done.errors[0]
    assert not done.refused


NORMALISES = """
class Ends(nn.Module):
    def forward(self, x):
        if self.training and os.environ["FLATOUT_RANK"] == "1" and os.path.exists("now"):
            os._exit(9)
        return x
model = nn.Sequential(nn.Linear(4, 8), Ends(), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(2)
open("now", "w").close()
train(5)
"""
BETWEEN = "train(2)\nif os.environ['FLATOUT_RANK'] == '1': os._exit(9)\ntrain(5)"


@pytest.mark.few(1)
@pytest.mark.parametrize("program", [BETWEEN, NORMALISES], ids=["between steps", "normalising"])
def test_a_rank_that_is_gone_ends_the_others(program: str, tmp_path: Path) -> None:
    done = run(tmp_path, program)
    assert done.codes == (wire.LOST_EXIT, 9)
    assert done.errors[0] == ""
    assert done.outputs[0].count("step") == 2


@pytest.mark.thorough
def test_rank_0_alone_saves(tmp_path: Path) -> None:
    program = """
train(2)
torch.save(model.state_dict(), "weights.pt")
with open("log.txt", "w") as file:
    file.write(f"rank {os.environ['FLATOUT_RANK']}\\n")
back = torch.load("weights.pt")
print("step", float(back["weight"].sum()), open("log.txt").read().count("rank"))
"""
    done = run(tmp_path, program)
    assert done.codes == (0, 0), done.errors
    assert (tmp_path / "log.txt").read_text() == "rank 0\n"
    assert done.outputs[0] == done.outputs[1]
    assert (tmp_path / "weights.pt").exists()


@pytest.mark.thorough
def test_the_ranks_samples_together_are_the_batchs(tmp_path: Path) -> None:
    program = """
from torch.utils.data import DataLoader
for x in DataLoader(torch.randn(18, 4), batch_size=9):
    train(1)
"""
    done = run(tmp_path, program)
    assert done.codes == (0, 0), done.errors
    samples = {}
    for ring in map(Ring, rings(tmp_path / "pulse-2")):
        samples[ring.header.rank] = [step.samples for step in ring.new()]
    assert samples == {0: [5, 5], 1: [4, 4]}
