"""The random streams that reading a dataset may draw from, and those of this rank alone.

Python's, NumPy's and torch's own generators, and those that the dataset holds or its code names.
"""

from __future__ import annotations

import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from flatout_agent.ranks import same_numbers
from flatout_agent.ranks.kept import random_states, set_random
from flatout_agent.speedups.samples.samples import Randomness
from flatout_agent.speedups.workers.reachable import globals_named
from flatout_agent.speedups.workers.worker_safety import random_generators

_own: dict[tuple[int, int, int], tuple[Callable[[], Any] | None, Streams]] = {}
"""This rank's own states, by process (a forked worker inherits those of its parent), dataset and
collate function."""


def held_generators(dataset: Any, collate: Any) -> list[Any]:
    """Random generators that the dataset or the collate function holds, or their code names, and
    those that stand for the system's.
    """
    found = list(same_numbers.of_the_system)
    found += random_generators(SimpleNamespace(dataset=dataset, collate_fn=collate))
    for source in (dataset, collate):
        for _, value in globals_named(source):
            if value is not None and not isinstance(value, (type, ModuleType, FunctionType)):
                found += random_generators(SimpleNamespace(dataset=value, collate_fn=None))
    usual = getattr(random.random, "__self__", None)  # it is known anyway
    return list({id(each): each for each in found if each is not usual}.values())


class Streams:
    """The states of all streams when this was created."""

    def __init__(self, generators: list[Any]) -> None:
        self.generators = generators
        self._usual, self._devices = Randomness(), random_states()
        self._held = [_held(generator)[0]() for generator in generators]

    def moved(self) -> bool:
        """Whether a number was drawn since."""
        if self._usual.moved():
            return True
        now = [_held(generator)[0]() for generator in self.generators]
        return any(not _equal(a, b) for a, b in zip(now, self._held, strict=True))

    def put_back(self) -> None:
        """Make the states those again."""
        set_random(self._devices)
        self._usual.put_back()
        for generator, state in zip(self.generators, self._held, strict=True):
            _held(generator)[1](state)


class Draws:
    """Whether random numbers were drawn."""

    seen = False


@contextmanager
def own_streams(rank: int, dataset: Any, collate: Any) -> Iterator[Draws]:
    """Draw random numbers of this rank alone; the common streams go on as if none were drawn."""
    key = (os.getpid(), id(dataset), id(collate))
    reference, before = _own.get(key, (None, None))
    if before is None or (reference is not None and reference() is not dataset):
        generators = held_generators(dataset, collate)
        common = Streams(generators)
        _seed(generators, rank)
        before = Streams(generators)
    else:
        generators = before.generators
        common = Streams(generators)
        before.put_back()
    draws = Draws()
    try:
        yield draws
    finally:
        draws.seen = before.moved()
        _own[key] = (_reference(dataset), Streams(generators) if draws.seen else before)
        common.put_back()


def _seed(generators: list[Any], rank: int) -> None:
    """Begin this rank's streams: they follow from the common seed, and no two ranks' are equal."""
    dice = random.Random(f"{torch.initial_seed()}, rank {rank}, {len(_own)}")
    random.seed(dice.getrandbits(63))
    torch.default_generator.manual_seed(dice.getrandbits(63))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(dice.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(dice.getrandbits(32))
    for generator in generators:
        _held(generator)[2](dice.getrandbits(32))


def _reference(dataset: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(dataset)
    except TypeError:  # a list
        return None


def _held(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]:
    """How the state of a generator is read, set, and made from a seed."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state, generator.manual_seed
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate, generator.seed
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator

        def put(state: Any) -> None:
            bits.state = state

        return lambda: bits.state, put, lambda seed: put(type(bits)(seed).state)
    return generator.get_state, generator.set_state, generator.seed  # numpy.random.RandomState


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a.tobytes() == b.tobytes()) if hasattr(a, "tobytes") else bool(a == b)
