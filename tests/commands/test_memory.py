"""`flatout memory` as a user calls it: fits, does not fit, cannot be measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import forked
from commands.called import Flatout

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[1] / "jobs"
FIXED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.ones(32, 1)
for _ in range(4):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=32):
        (model(x) * weights).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""It trains on batches of 32 samples alone."""


def test_a_script_that_fits_and_one_that_does_not(flat: Flatout, tmp_path: Path) -> None:
    shutil.copy(JOBS / "plain.py", tmp_path / "train.py")
    words = ["memory", "--python", forked.python(), "--gpus", "8", "--memory"]
    done = flat(*words, "80GB", "--json", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["schema"], found["fits"], found["chosen"]) == ("flatout.memory/1", True, "dp")
    assert found["devices"] == 8
    assert len(found["measured_rows"]) == 2
    done = flat(*words, "1KB", "train.py", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "no strategy fits" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", ".flatout"}


@pytest.mark.thorough
def test_a_script_that_needs_its_whole_batch(flat: Flatout, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIXED, encoding="utf-8")
    words = ["--python", forked.python(), "--gpus", "1", "--memory", "1GB", "--json", "train.py"]
    done = flat("memory", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["measured_rows"], found["batch_rows"]) == ([32], 32)
    assert "cannot train on a part of its batch" in found["notes"][0]
