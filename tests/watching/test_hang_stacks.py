"""The stacks of a job that hangs: of every rank, the one that is least far first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked
from agent_paths import INJECT
from flatout.running.one.ring import Ring, rings
from flatout.running.ranks import stacks
from flatout.watching.following import FollowedRank
from flatout.watching.job_watch import hang_stacks
from flatout_agent import wire

HANG = """
import sys, threading, torch
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(int(sys.argv[1])):
    w.sum().backward()
    optimizer.step()
print("waits", flush=True)
threading.Event().wait()  # for ever
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals of /proc")
def test_two_ranks(tmp_path: Path) -> None:
    for name in ("records", "pulse"):
        (tmp_path / name).mkdir()
    orders = wire.Orders(str(tmp_path / "records"), pulse=str(tmp_path / "pulse"))
    (tmp_path / "orders.json").write_text(wire.dump(orders))
    (tmp_path / "train.py").write_text(HANG)
    environ = dict(os.environ, PYTHONPATH=str(INJECT), OMP_NUM_THREADS="1")
    environ[wire.ORDERS_ENV] = str(tmp_path / "orders.json")
    processes = [
        subprocess.Popen(
            [forked.python(), str(tmp_path / "train.py"), steps],
            env=environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, steps in enumerate(("5", "3"))
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
        ranks = [FollowedRank(Ring(path)) for path in rings(tmp_path / "pulse")]
        for rank in ranks:
            rank.update(0.0, None)
        deadline = time.monotonic() + 120
        text = ""
        while text.count('train.py", line 9') < 2 and time.monotonic() < deadline:
            text = hang_stacks(ranks, wait_s=60.0)  # they may not have come to that line
        assert text.index("rank 1, ") < text.index("rank 0, ")
        assert "step 3" in text
        assert text.count('train.py", line 9') == 2
        assert stacks.write(text, str(tmp_path)) == str(tmp_path / "stacks.txt")
        assert stacks.write(text, str(tmp_path / "gone")) is None
        for rank in ranks:
            os.kill(rank.ring.header.pid, signal.SIGKILL)
        for process in processes:  # which ends as the program does
            process.wait(timeout=120)
        assert hang_stacks(ranks) == ""  # nobody is there to be asked
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_program_that_the_job_starts_does_not_take_its_rank(tmp_path: Path) -> None:
    from flatout.watching.following import FollowedJob
    from flatout_agent.tell.pulse import Pulse
    from flatout_agent.wire.job_list import JobEntry

    trains = Pulse(str(tmp_path))
    for step in range(1, 31):
        trains.step(step, float(step))
    Pulse(str(tmp_path))  # of an evaluation that the job has started, with the same rank
    entry = JobEntry("1-1", 1, 1, 0, "train.py", "/", "/", str(tmp_path), 0.0)
    job = FollowedJob(entry)
    job.update(1.0)
    assert job.sample("node").step == 30
