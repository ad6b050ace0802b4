"""Loading one batch, in a worker or in the training process, with the same result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from flatout_agent.speedups import nests
from flatout_agent.speedups.workers import worker_safety
from flatout_train.devices import moves_itself
from flatout_train.errors import UsageError
from flatout_train.loader.caching import SampleCache
from flatout_train.loader.sampling import Request
from flatout_train.loader.seeding import drawn_since, seed_for, seeded

Collate = Callable[[list[Any]], Any]
DRAWN = 4
"""Samples that are loaded twice to measure their cost and check that they stay the same."""


@dataclass(frozen=True)
class Probe:
    """Measurements of loading the first batch."""

    seconds: float
    """Time for one batch."""
    busy: float
    """Fraction of that time in which a core was used; the rest was waiting for data."""
    random: str | None
    """Why a sample may differ when it is loaded again; None: it does not."""


@dataclass
class Parcel:
    """A batch on its way from where it was loaded."""

    batch: Any
    probe: Probe | None = None
    worker: int = 0
    state: Any = None
    """The iterable data set's own state after this batch, where it has one."""
    empty: bool = False
    last: bool = False
    problem: str | None = None
    """Instead of a batch: the message of a UsageError."""

    def pin_memory(self) -> Parcel:
        """Called by torch's DataLoader where the device reads pinned memory."""
        self.batch = nests.change(self.batch, pinned, moves_itself)
        return self


def pinned(leaf: Any) -> Any:
    """The tensor, or the object that can pin itself, in page-locked memory.

    What is on a device already is returned unchanged: torch cannot pin it.
    """
    device = getattr(getattr(leaf, "data", leaf), "device", None)  # `data`: of a PackedSequence
    if not hasattr(leaf, "pin_memory") or getattr(device, "type", "cpu") != "cpu":
        return leaf
    return leaf.pin_memory()


class BatchedDataset(Dataset[Parcel]):
    """A map-style data set seen as batches: `fetcher[request]` is a Parcel."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self.dataset = dataset
        self.collate = collate
        self.cache: SampleCache | None = None
        self._own: list[Any] | None = None

    def __getitem__(self, request: Request) -> Parcel:
        try:
            if request.probe:
                return self._probed(request)
            return Parcel(self._batch(request.indices, request.seed))
        except UsageError as error:
            return Parcel(None, problem=str(error))

    def _batch(self, indices: Sequence[int] | torch.Tensor, seed: int) -> Any:
        numbers: list[Any] = indices.tolist() if isinstance(indices, torch.Tensor) else [*indices]
        with seeded(seed, self._generators()):
            if self.cache is not None and self.cache.holds:
                return self.cache.batch(numbers, seed, self._load, self._generators())
            return self._load(numbers)

    def _load(self, numbers: list[Any]) -> Any:
        return collated(self._samples(numbers), self.collate)

    def _samples(self, numbers: list[Any]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        if together is None:
            return [self._sample(number) for number in numbers]
        try:
            return list(together(numbers))
        except Exception as error:
            error.add_note(f"flatout.loader: raised by dataset.__getitems__({numbers})")
            raise

    def _sample(self, number: Any) -> Any:
        try:
            return self.dataset[number]
        except StopIteration as error:  # it would look like the end of the epoch
            raise RuntimeError(f"dataset[{number}] raised StopIteration") from error
        except Exception as error:
            error.add_note(f"flatout.loader: raised by dataset[{number}]")
            raise

    def _generators(self) -> list[Any]:
        """Random generators in the data set; searched once in each process."""
        if self._own is None:
            self._own = generators_of(self.dataset, self.collate)
        return self._own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def _probed(self, request: Request) -> Parcel:
        began, worked = time.perf_counter(), time.process_time()
        batch = self._batch(request.indices, request.seed)
        seconds, busy = time.perf_counter() - began, time.process_time() - worked
        numbers = list(dict.fromkeys([int(number) for number in request.indices]))
        drawn = numbers[:: max(1, len(numbers) // DRAWN)][:DRAWN]
        began, worked = time.perf_counter(), time.process_time()
        random = self._random(drawn, request.seed)
        again = (time.perf_counter() - began) / 2 / len(drawn) * len(numbers)
        if again < seconds:  # the first batch also opened files and imported modules
            busy, seconds = (time.process_time() - worked) / 2 / len(drawn) * len(numbers), again
        return Parcel(batch, Probe(seconds, min(1.0, busy / max(seconds, 1e-9)), random))

    def _random(self, numbers: list[int], seed: int) -> str | None:
        """Why samples are random; None: they are not. Loads each twice, under two seeds.

        Draws of random numbers are detected even where the results are equal.
        """
        own, reason = self._generators(), None
        for number in numbers:
            samples = []
            for again in range(2):
                with seeded(seed_for(seed, again), own):
                    samples.append(self._samples([number])[0])
                    if drawn_since(seed_for(seed, again), own) and reason is None:
                        reason = f"dataset[{number}] draws random numbers"
            if reason is None and not same(*samples):
                reason = f"dataset[{number}] returned another sample when it was read again"
        return reason


def generators_of(dataset: Any, collate: Any) -> list[Any]:
    """Random generators in the data set or the collate function."""
    return worker_safety.random_generators(SimpleNamespace(dataset=dataset, collate_fn=collate))


def same(first: Any, second: Any) -> bool:
    """Whether two samples are bit-identical."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if hasattr(first, "tobytes") and hasattr(first, "dtype"):
        return bool(first.shape == second.shape and first.tobytes() == second.tobytes())
    return bool(first == second)


def collated(samples: list[Any], collate: Collate | None) -> Any:
    """The samples as one batch. Raises UsageError where torch's default collate cannot do it."""
    if collate is not None:
        try:
            return collate(samples)
        except Exception as error:
            shown = "; ".join(describe(sample) for sample in samples[:3])
            error.add_note(f"flatout.loader: raised by collate for {len(samples)} samples: {shown}")
            raise
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        first = describe(samples[0])
        other = next((text for text in map(describe, samples) if text != first), None)
        if other is None:
            raise UsageError(
                f"samples like {first} cannot be stacked ({error}): return tensors or numbers "
                "from the data set, or pass collate="
            ) from error
        raise UsageError(
            f"samples of one batch differ: {first} and {other}. Give them one shape and type in "
            "the data set, pass lengths= to pad 1-d samples, or pass your own collate="
        ) from error


def describe(sample: Any) -> str:
    """The structure of a sample: types and shapes."""
    if isinstance(sample, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(sample[key])}" for key in sample) + "}"
    if isinstance(sample, tuple | list) and len(sample) <= 8:
        return "(" + ", ".join(map(describe, sample)) + ")"
    if hasattr(sample, "shape"):
        return f"{str(sample.dtype).removeprefix('torch.')} {list(sample.shape)}"
    length = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
    return type(sample).__name__ + length


def unpacked(batch: Any) -> Any:
    """DataLoader's collate: batches come out of the fetcher complete."""
    return batch
