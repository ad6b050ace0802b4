"""Stacks of real loader workers, forked and spawned."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from flatout_agent import wire
from flatout_agent.watch.profile.worker_stacks import WorkerStacks, with_workers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no workers are forked there")
LONGEST_S = 120.0


class Slow(Dataset[torch.Tensor]):
    """Its samples take some milliseconds of Python each."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return prepared(index)


def prepared(index: int) -> torch.Tensor:
    return torch.tensor(float(sum(number % 7 for number in range(40_000 + index))))


@pytest.mark.slow
def test_each_worker_tells_where_its_time_goes(tmp_path: Path) -> None:
    stacks = WorkerStacks(str(tmp_path))
    try:
        batches = iter(DataLoader(Slow(), 4, num_workers=1))
        pids = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
        next(batches)
        stacks.start()
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            next(batches)
        stacks.stop()
        while not stacks.hosts(pids):
            next(batches)
            assert time.monotonic() - began < LONGEST_S, "the worker has written nothing"
    finally:
        stacks.remove()
    host = with_workers(wire.HostSeen(steps=10, step_s=0.1), stacks.hosts(pids))
    total_s = sum(stack.s for stack in host.worker_stacks)
    in_prepared_s = sum(
        stack.s
        for stack in host.worker_stacks
        if any(host.frames[number].function.startswith("prepared") for number in stack.frames)
    )
    assert total_s > 0
    assert in_prepared_s > 0.5 * total_s
    assert host.worker_idle_s is None or host.worker_idle_s >= 0


def test_torch_is_put_back_and_later_workers_do_not_begin(tmp_path: Path) -> None:
    module = torch.utils.data._utils.worker
    before = module._worker_loop
    stacks = WorkerStacks(str(tmp_path))
    assert module._worker_loop is not before
    assert module._worker_loop.__qualname__ == before.__qualname__, "a spawned worker loads it"
    stacks.remove()
    assert module._worker_loop is before


def test_without_workers_nothing_is_known(tmp_path: Path) -> None:
    stacks = WorkerStacks(str(tmp_path))
    stacks.remove()
    host = wire.HostSeen(steps=10, step_s=0.1)
    assert with_workers(host, stacks.hosts([12345])) == host
