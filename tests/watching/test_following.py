"""A job followed through the ring of a real process: its GPUs, its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flatout.nouns.machine_sample import GpuSample, GpuUse, MachineSample
from flatout.running.one.jobs import JobEntry
from flatout.watching.following import FollowedJob
from flatout.watching.rules import RankHistory
from flatout_agent.tell.pulse import Pulse

NOBODY = 2**22 - 7
"""A process that is not there."""


def followed(folder: Path) -> FollowedJob:
    entry = JobEntry("7-1", os.getpid(), 0, 0, "train.py", "/work", "", str(folder), 1.0)
    return FollowedJob(entry)


def seen(job: FollowedJob, *gpus: GpuSample) -> RankHistory:
    """Its only rank, on a machine with these GPUs."""
    now_s = time.time()
    job.update(now_s, MachineSample(now_s, "node", gpus=gpus))
    (rank,) = job.history.ranks
    return rank


@pytest.fixture
def pulse(tmp_path: Path) -> Pulse:
    made = Pulse(str(tmp_path))
    made.trains_on("cuda")
    made.step(1, time.perf_counter())
    return made


def test_the_gpus_of_its_processes(pulse: Pulse, tmp_path: Path) -> None:
    others, own = (GpuUse(NOBODY, 5),), (GpuUse(NOBODY, 5), GpuUse(os.getpid(), 7))
    job = followed(tmp_path)
    rank = seen(
        job, GpuSample(0, "nvidia", processes=others), GpuSample(1, "nvidia", processes=own)
    )
    assert rank.gpus == (1,)
    assert job.sample("node").gpu_memory_bytes == 7


def test_where_no_processes_are_listed_it_uses_the_only_gpu(pulse: Pulse, tmp_path: Path) -> None:
    job = followed(tmp_path)
    assert seen(job, GpuSample(0, "nvidia", processes=())).gpus == (0,)
    assert seen(job, GpuSample(0, "apple")).gpus == (0,)
    assert seen(job, GpuSample(0, "nvidia"), GpuSample(1, "nvidia")).gpus == ()
    assert seen(job, GpuSample(0, "nvidia", processes=(GpuUse(NOBODY, 5),))).gpus == ()
    assert seen(job).gpus == ()
    pulse.trains_on("cpu")
    assert seen(job, GpuSample(0, "nvidia", processes=())).gpus == ()
