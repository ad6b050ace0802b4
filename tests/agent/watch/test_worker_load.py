"""How busy loader workers keep the cores, with real workers."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from flatout_agent.boosts import loading_share
from flatout_agent.job import Job
from flatout_agent.watch import worker_load
from flatout_agent.wire import JobFacts


class Busy(Dataset[Any]):
    def __init__(self, busy: bool) -> None:
        self.busy = busy

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        until = time.process_time() + 0.02 if self.busy else 0.0
        while time.process_time() < until:
            pass
        if not self.busy:
            time.sleep(0.05)
        return torch.ones(1)


def _share(busy: bool) -> float:
    job, loader = Job(), DataLoader(Busy(busy), num_workers=1, batch_size=1, prefetch_factor=40)
    job.loaders.append(loader)
    batches = iter(loader)
    job.iterating(loader, batches)
    for _ in range(20):
        next(batches)
    share = worker_load.share(job)
    assert share is not None
    return share


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_workers_that_compute_take_a_share_of_the_cores() -> None:
    assert _share(busy=False) < _share(busy=True)


def test_without_workers_nothing_is_taken() -> None:
    assert worker_load.share(Job()) == (0.0 if sys.platform == "linux" else None)


def test_beside_a_model_on_the_cpu_it_is_a_part_of_loading() -> None:
    def facts(device: str, wait: float | None) -> JobFacts:
        return JobFacts("2.13.0", "3.11", "linux", device, wait_share=wait, workers_share=0.5)

    assert loading_share(facts("cpu", 0.1)) == pytest.approx(0.6)
    assert loading_share(facts("cpu", 0.8)) == 0.9
    assert loading_share(facts("cuda", 0.1)) == pytest.approx(0.1)
    assert loading_share(facts("cpu", None)) is None
