"""How many workers, and why none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import flatout
from flatout_agent.speedups.workers import worker_safety
from flatout_train.loader import workers
from flatout_train.loader.workers import LoadingCost


def enough(seconds: float, batches: int = 1000, **other: Any) -> tuple[int, str]:
    given = {"share": 16, "accelerated": True, "method": "fork", "busy": 1.0, **other}
    return workers.enough(LoadingCost(seconds, given.pop("busy")), batches, **given)


def test_workers_follow_from_cost_and_cores() -> None:
    assert enough(0.0005) == (0, "a batch takes 0.5 ms to load: a worker would not be faster")
    assert enough(0.005)[0] == 3
    assert enough(1.0) == (15, "a batch takes 1000.0 ms to load, 16 cores")
    assert enough(1.0, accelerated=False)[0] == 4
    assert enough(1.0, share=2, accelerated=False)[0] == 1
    assert enough(1.0, share=1)[0] == 0
    assert enough(1.0, share=1, busy=0.01)[0] == 1
    assert "would not pay off" in enough(0.01, batches=10)[1]
    assert enough(0.01, batches=100, method="spawn")[0] == 0


class Slow(Dataset):
    """Costs what its samples are told to cost, and remembers in which process it was read."""

    def __init__(self, held: Any = None) -> None:
        self.held, self.reads = held, 0

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.rand(3)


def test_auto_starts_workers_when_the_first_batch_was_costly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "timed", lambda *_: LoadingCost(0.02, 1.0))
    dataset = Slow()
    loader = flatout.loader(dataset, 64, device="cpu")
    batches = iter(loader)
    first = next(batches)
    assert loader.notes["workers"] == "2: a batch takes 20.0 ms to load, 8 cores"
    assert torch.equal(first, next(iter(flatout.loader(Slow(), 64, device="cpu", workers=0))))
    assert dataset.reads == 0
    loader.close()


def test_a_run_that_is_resumed_at_a_short_batch_gets_the_workers_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(_: Any, request: Any) -> LoadingCost:
        return LoadingCost(0.005 * len(request.indices), 1.0)

    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "timed", timed)
    sampler = range(65)
    loader = flatout.loader(Slow(), 64, device="cpu", sampler=sampler)
    next(iter(loader))
    again = flatout.loader(Slow(), 64, device="cpu", sampler=sampler)
    again.load_state_dict(loader.state_dict())
    assert len(next(iter(again))) == 1
    assert again.notes == loader.notes
    assert again.notes["workers"].startswith("2: a batch takes 320.0 ms")
    loader.close()
    again.close()


def test_cheap_samples_get_none() -> None:
    loader = flatout.loader([torch.ones(1)] * 100, 2)
    assert len(list(loader)) == 50
    assert loader.notes["workers"].startswith("0: a batch takes")


def test_a_batch_that_cannot_be_loaded_fails_where_it_is_asked_for() -> None:
    loader = flatout.loader([object()] * 4, 2)
    with pytest.raises(TypeError, match="found <class 'object'>"):
        list(loader)
    assert loader.notes["workers"] == "0: loading a batch failed in a worker"


def test_where_shared_memory_is_small_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_safety, "_free_shared_memory", lambda: 1000)
    loader = flatout.loader(Slow(), 256)
    next(iter(loader))
    assert loader.notes["workers"].startswith("0: /dev/shm has")


@pytest.mark.parametrize("held", ["file", "iterator"])
def test_what_a_worker_must_not_share_keeps_loading_here(held: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with (tmp_path / "data").open() as file:
        dataset = Slow(file if held == "file" else (index for index in range(3)))
        loader = flatout.loader(dataset, 4)
        next(iter(loader))
        assert loader.notes["workers"].startswith("0: dataset.held is an")


def test_where_workers_are_spawned_what_they_cannot_have_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_safety, "main_guard", lambda: False)
    reason = workers.why_none(Slow(), len, "spawn", 4, 2)
    assert reason is not None
    assert "spawned workers" in reason
