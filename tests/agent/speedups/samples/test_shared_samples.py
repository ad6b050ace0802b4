"""sample-cache with loader workers: what one has read comes from memory in all, bit for bit."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import loaded
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Declined
from flatout_agent.boosts import sample_cache as boost
from flatout_agent.job import Job
from flatout_agent.speedups.samples import shared_samples
from flatout_agent.speedups.samples.cached_reads import DRAWS
from flatout_agent.speedups.samples.samples import same
from flatout_agent.speedups.samples.shared_samples import Stored
from flatout_agent.speedups.shared_log import Log
from flatout_agent.tell.recorder import Recorder
from flatout_agent.wire import BoostOrder
from loaded import start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name")
COUNT = 24
READ = torch.zeros(COUNT, dtype=torch.int64).share_memory_()
"""How often each photo was read, by any process."""


class Photos(Dataset[Any]):
    def __init__(self, decode: Callable[[int], Any] | None = None) -> None:
        self.decode = decode or _photo
        self.shift = 0.0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == 23 and self.shift < 0:
            raise OSError("photo 23 is broken")
        READ[index] += 1
        sample = self.decode(index)
        return sample if self.shift == 0.0 else (sample[0] + self.shift, sample[1])


class ReadsBatches(Photos):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


def _photo(index: int) -> Any:
    return torch.arange(6.0).reshape(2, 3) + index, index % 3


def _photo_or_noise(index: int) -> Any:
    return torch.full((2,), random.random() if index == 5 else 0.5)


@pytest.fixture(autouse=True)
def nothing_read_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    READ.zero_()
    shared_samples._caches.clear()
    for module in (boost, shared_samples):
        monkeypatch.setattr(module, "spare_memory", lambda: 16 << 20)


def _loader(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    given = {"batch_size": 4, "num_workers": 2, **options}
    return DataLoader(Photos() if dataset is None else dataset, **given)


@pytest.mark.parametrize(
    "decode",
    [_photo, lambda index: {"text": f"line {index}", "x": np.arange(4, dtype=np.float32) * index}],
    ids=["tuple", "dict"],
)
@pytest.mark.parametrize("options", [{"shuffle": True}, {"batch_size": 5, "collate_fn": list}])
def test_every_epoch_is_the_same_as_without(decode: Any, options: dict[str, Any]) -> None:
    held, detail = loaded.told(boost, lambda: _loader(Photos(decode), **options))
    assert held, detail
    assert detail.startswith(f"{2 * COUNT} samples from memory")


def test_each_sample_is_read_once_by_one_of_the_workers() -> None:
    job, loader = Job(), _loader(shuffle=True)
    applied = boost.apply(job, loader, {})
    list(start(job, loader))
    assert (READ >= 1).all()
    READ.zero_()
    for _ in range(3):
        list(start(job, loader))
    assert READ.sum() <= 3 * 2 * 2  # two are compared in each new worker
    assert applied.steps_to_ready() == 0
    boost.forget(job)
    applied.undo()
    assert loader.worker_init_fn is None
    assert loader not in shared_samples._caches


def test_a_sample_that_draws_ends_it_for_all() -> None:
    assert loaded.told(boost, lambda: _loader(Photos(_photo_or_noise))) == (False, DRAWS)


def test_what_the_program_sets_between_epochs_is_seen() -> None:
    job, dataset = Job(), Photos()
    loader = _loader(dataset)
    boost.apply(job, loader, {})
    for shift in (0.0, 0.0, 100.0, 0.0):
        dataset.shift = shift
        batches = list(start(job, loader))
        expected = list(DataLoader(dataset, batch_size=4))
        assert same([list(b) for b in batches], [list(b) for b in expected])


def test_errors_of_the_dataset_are_passed_on() -> None:
    dataset = Photos()
    dataset.shift = -1.0
    job, loader = Job(), _loader(dataset)
    boost.apply(job, loader, {})
    for _ in range(2):
        with pytest.raises(OSError, match="photo 23 is broken"):
            list(start(job, loader))


def test_switched_in_the_middle_of_an_epoch(recorder: Recorder) -> None:
    """No sample is lost or repeated, and the samples stay while it is off."""
    job, loader = Job(), _loader(prefetch_factor=1)
    job.handovers = weakref.WeakSet()
    job.loaders.append(loader)
    booster = Booster(job, (), recorder)
    order = BoostOrder("sample-cache", {})
    expected = [list(batch) for batch in loader]
    for _ in range(3):
        seen = []
        for step, batch in enumerate(start(job, loader)):
            seen.append(list(batch))
            if step == 1:
                assert booster.on(order) is None
            elif step == 3:
                booster.off("sample-cache")
        assert same(seen, expected)
    # How far workers read ahead while it is on is a matter of their speed: now they read it all.
    assert booster.on(order) is None
    for _ in range(2):
        assert same([list(batch) for batch in start(job, loader)], expected)
    booster.off("sample-cache")
    assert booster.idle("sample-cache") is None
    booster.forget("sample-cache")
    assert loader.worker_init_fn is None


def test_too_many_samples_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_samples, "spare_memory", lambda: 8192)
    held, detail = loaded.told(
        boost, lambda: _loader(Photos(lambda index: torch.full((64,), float(index))))
    )
    assert not held
    assert detail.startswith("24 samples would take 0 MB")


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (_loader(multiprocessing_context="spawn"), "its workers are not forked"),
        (_loader(ReadsBatches()), "the dataset loads whole batches"),
    ],
)
def test_declines(loader: Any, reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        boost.apply(Job(), loader, {})


def test_declines_workers_that_the_loader_keeps() -> None:
    loader = _loader(num_workers=1, persistent_workers=True)
    list(loader)
    with pytest.raises(Declined, match="keeps its workers"):
        boost.apply(Job(), loader, {})
    loader._iterator = None


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor(3 + 4j),
        torch.empty(0, 4),
        torch.tensor(7),
        [np.float32(3), {"a": (b"x", None)}, np.arange(3)],
        Image.new("RGB", (3, 2), (1, 2, 3)),
    ],
    ids=["turned", "bfloat16", "bool", "complex", "empty", "number", "nest", "image"],
)
def test_what_is_stored_comes_back_whole_and_independent(value: Any) -> None:
    stored = Stored(Log(1 << 16), lambda index: index.to_bytes(16, "little"))
    stored[3] = value
    first, second = stored[3], stored[3]
    assert same(first, value)
    if isinstance(value, torch.Tensor) and value.numel():
        first.fill_(0)
    assert same(second, value)
    assert (3 in stored, 4 in stored, len(stored)) == (True, False, 1)
