"""`flatout run` of programs that know ranks themselves, with the agent inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import ranked
from flatout.nouns.plan import Plan, PlannedRanks
from flatout.probing.identity import identity
from flatout.running.one.command import script_sha256
from flatout.running.ranks.layout import RankLayout
from flatout.tuning import plan_file, rank_run

pytestmark = pytest.mark.slow

FAILS = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1000):
    if step == 5 and dist.get_rank() == 1:
        raise ValueError("no such label")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", "run", "--ranks", "2", *words]
    environ = dict(os.environ, COLUMNS="200", OMP_NUM_THREADS="1")
    settings = {"cwd": folder, "env": environ, "capture_output": True, "text": True}
    return subprocess.run(command, timeout=150, check=False, **settings)


def remember(folder: Path, script: Path) -> None:
    """A plan whose trial has found two ranks of Accelerate's here: there is no other trial."""
    machine = identity()
    described = rank_run.described(RankLayout(2, 1), machine)
    sha = script_sha256(script)
    ranks = PlannedRanks(2, 2, machine=described, script_sha256=sha, native="accelerate")
    plan_file.write(Plan((), machine=machine, ranks=ranks), folder / "flatout.toml")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_a_remembered_framework_prints_what_one_process_prints(root: Path, tmp_path: Path) -> None:
    script = root / "tests" / "jobs" / "accelerate_loop.py"
    remember(tmp_path, script)
    words = [str(script), "--steps", "20"]
    done = run(tmp_path, "--python", forked.python(), "--", *words)
    assert done.returncode == 0, done.stderr
    assert "trial" not in done.stderr
    assert "started as torchrun would; Accelerate divided the work" in done.stderr
    alone = ranked.run(tmp_path, words, 1)
    expected = ranked.losses(alone.outputs[0])
    assert ranked.losses(done.stdout) == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_a_rank_that_fails_is_named_and_none_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    done = run(tmp_path, "--no-plan", "--no-trial", "train.py")
    assert done.returncode == 1
    assert "rank 1 of 2 ended first: ValueError: no such label" in done.stderr
    assert "train.py:9" in done.stderr
