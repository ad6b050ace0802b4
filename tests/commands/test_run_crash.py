"""Real programs crash under `flatout run`: cause and cure stand under their own traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from commands.called import process
from measuring.programs import WITHOUT_COMPILER

pytestmark = pytest.mark.slow

RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise FileNotFoundError(2, "No such file or directory", "shards/part-1.tar")
dist.barrier()
"""
SEGMENTATION_FAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def run(folder: Path, script: str, *before: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    words = ("run", "--no-plan", *before, "train.py")
    return process(*words, folder=folder, LANG="C.UTF-8", LC_ALL="C.UTF-8")


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    torchrun = ["--", "torchrun", "--standalone", "--nproc-per-node", "2"]
    done = run(tmp_path, RANKS, "--json", *torchrun)
    root, *rest = json.loads(done.stdout)["matches"]
    assert "shards/part-1.tar" in root["title"] + root["cause"] + root["evidence"]
    assert root["rank"] == 1
    assert all(item["consequence_of"] for item in rest)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_is_explained_in_a_line_and_passed_on(tmp_path: Path) -> None:
    done = run(tmp_path, SEGMENTATION_FAULT)
    assert done.returncode == -11
    assert "flatout: " in done.stderr
    assert "egmentation" in done.stderr


LABELS = (
    WITHOUT_COMPILER
    + """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, labels = torch.randn(64, 8), torch.randint(0, 10, (64,))
labels[37] = 10
model = nn.Linear(8, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch, target in DataLoader(TensorDataset(x, labels), batch_size=16):
    loss = nn.functional.cross_entropy(model(batch), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
LEAK = (
    WITHOUT_COMPILER
    + """
import resource, torch
kept, weight = [], torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (500 << 20),) * 2)
while True:
    loss = (torch.ones(1 << 20) * weight).mean()
    kept.append(torch.ones(1 << 20) * weight)
    loss.backward()
    optimizer.step()
"""
)


@pytest.mark.parametrize(
    ("script", "known"),
    [
        pytest.param(LABELS, ["Label 10 at position 5 of target", "sample 37"], id="a label"),
        # Indices, types and shapes: tests/agent/process/test_crash_scene.py.
        pytest.param(
            LEAK,
            ["Memory in use grew with the steps"],
            id="a leak",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux"),
        ),
    ],
)
def test_what_the_run_knows_of_its_crash(tmp_path: Path, script: str, known: list[str]) -> None:
    done = run(tmp_path, script, "--json", "--python", forked.python())
    document = json.loads(done.stdout.splitlines()[-1])
    said = " ".join(document["observations"])
    assert [words for words in known if words not in said] == [], said
    assert "error inside flatout" not in done.stderr
    assert "known " in done.stderr
