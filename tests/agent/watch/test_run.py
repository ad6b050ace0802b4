"""What a run at next to no cost counts: it is told of few calls, and of no evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from flatout_agent.watch.run import RunWatch, spread

TRAIN, AGAIN, VALIDATION = "train", "train again", "validation"


class Loop:
    """A program's loop, as discovery tells of it."""

    def __init__(self) -> None:
        self.model: Any = object()
        self.job: Any = SimpleNamespace(
            steps=0, models=[self.model], device="cpu", by_hand=False, backwards=0
        )
        booster: Any = SimpleNamespace(applied={})
        self.watch = RunWatch(self.job, booster, recorder=SimpleNamespace())  # type: ignore[arg-type]

    def batch(self, loader: str, rows: int) -> None:
        self.watch.batch(loader, torch.zeros(rows, 2), 0.5)

    def call(self, rows: int) -> None:
        self.watch.training_call(self.model, (torch.zeros(rows, 2),), {})

    def step(self) -> None:
        self.job.steps += 1
        self.watch.step()


def test_batches_of_the_training_loader_count_and_no_others() -> None:
    loop = Loop()
    loop.batch(TRAIN, 4)
    loop.call(4)
    loop.step()
    for _ in range(3):
        loop.batch(VALIDATION, 32)
    loop.batch(TRAIN, 4)
    loop.batch(VALIDATION, 32)  # within a step
    loop.step()
    loop.batch(TRAIN, 4)
    loop.step()
    assert (loop.watch.samples, loop.watch.wait_s) == (12, 1.5)


def test_a_loader_that_is_made_anew_for_each_epoch_is_followed() -> None:
    loop = Loop()
    loop.batch(TRAIN, 4)
    loop.call(4)
    loop.step()
    for _ in range(3):
        loop.batch(AGAIN, 4)
        loop.step()
    assert (loop.watch.samples, loop.watch.wait_s) == (12, 1.5)  # less the first of its batches


def test_without_a_loader_every_step_has_the_inputs_of_the_first() -> None:
    loop = Loop()
    loop.call(8)
    loop.step()
    loop.step()
    assert loop.watch.samples == 16


def test_memory_is_read_ever_more_rarely_and_a_long_batch_stands_out() -> None:
    loop = Loop()
    loader: Any = SimpleNamespace(batch_size=4, sampler=None)
    loop.watch.epoch_begins(loader)
    for rows in [4] * 999 + [400]:
        loop.batch(loader, rows)
        loop.call(rows)
        if rows == 4:
            loop.step()
    seen = loop.watch.history.seen()
    assert seen.steps[:3] == (1, 2, 3)
    assert len(seen.steps) == len(seen.memory_bytes) < 100
    assert seen.steps[-1] > 900
    assert (seen.batch_elements, seen.most_elements, seen.batch) == (800, 8, 999)
    assert not seen.in_order


def test_an_evaluation_between_leaves_the_number_of_the_batch_open() -> None:
    loop = Loop()
    train: Any = SimpleNamespace(batch_size=4)
    loop.watch.epoch_begins(train)
    loop.batch(train, 4)
    loop.batch(SimpleNamespace(batch_size=4), 4)  # type: ignore[arg-type]
    loop.batch(train, 4)
    assert loop.watch.history.seen().batch is None


def test_data_parallel_over_several_devices_is_seen() -> None:
    parallel = torch.nn.DataParallel(torch.nn.Linear(2, 1))
    assert spread(parallel) == 0  # on a CPU it calls its module
    parallel.device_ids = [0, 1, 2]
    assert spread(parallel) == 3
    parallel.device_ids = [0]
    assert spread(parallel) == 0
    assert spread(torch.nn.Linear(2, 1)) == 0
