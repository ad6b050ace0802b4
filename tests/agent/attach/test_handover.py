"""Whatever is switched in the middle of an epoch: the same samples in the same order."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from discovered import discovered
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Declined
from flatout_agent.boosts import loader_pin_memory, loader_workers
from flatout_agent.job import Job
from flatout_agent.watch import Watcher
from flatout_agent.wire import BoostOrder

COUNT = 23
BATCH = 3
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)


class Numbers(Dataset[Any]):
    """Sample n is n; one of them may be broken."""

    def __init__(self, broken: int | None = None, count: int = COUNT) -> None:
        self.broken, self.count = broken, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return torch.tensor(float(index))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[float]:
        return iter(torch.rand(9).tolist())


class Drawn:
    """A sampler that draws as soon as it is asked to begin."""

    def __init__(self, batches: bool) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(COUNT), COUNT)
        order = [order[place] for place in torch.randperm(COUNT).tolist()]
        parts = [order[at : at + BATCH] for at in range(0, COUNT, BATCH)]
        return iter(parts if self.batches else order)

    def __len__(self) -> int:
        return -(-COUNT // BATCH) if self.batches else COUNT


class Failing:
    """A sampler that raises in place of its fifth batch and then has some more."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2], [3, 4], [5])
        raise KeyError("no fifth batch")

    def __len__(self) -> int:
        return 7


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in order": lambda data: {"batch_size": BATCH},
    "shuffle": lambda data: {"batch_size": BATCH, "shuffle": True},
    "own generator": lambda data: {
        "batch_size": BATCH,
        "shuffle": True,
        "generator": _seeded(),
    },
    "drop_last": lambda data: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "subset": lambda data: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(3, 20))},
    "weighted": lambda data: {"batch_size": 2, "sampler": WeightedRandomSampler([1.0] * COUNT, 15)},
    "replacement": lambda data: {
        "batch_size": BATCH,
        "sampler": RandomSampler(data, replacement=True),
    },
    "sampler": lambda data: {"batch_size": BATCH, "sampler": Drawn(batches=False)},
    "batch_sampler": lambda data: {"batch_sampler": Drawn(batches=True)},
    "failing": lambda data: {"batch_sampler": Failing()},
    "no batches": lambda data: {"batch_size": None, "shuffle": True},
    "no batches, drawn": lambda data: {"batch_size": None, "sampler": Drawn(batches=False)},
}


def agent() -> contextlib.AbstractContextManager[tuple[Job, Booster]]:
    return discovered(Watcher())


def loader_of(kind: str, broken: int | None) -> DataLoader[Any]:
    data = Numbers(broken)
    return DataLoader(data, **LOADERS[kind](data))


def program(
    loader: Any,
    leave: dict[int, int],
    between: Callable[[], None],
    before: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Three epochs, some left early; all that the program gets to see and draws itself."""
    torch.manual_seed(3)
    random.seed(3)
    seen: list[Any] = []
    for epoch in range(3):
        before()
        batches = iter(loader)
        seen.append(("begins", len(loader), len(batches), torch.rand(1).item()))
        for number in range(99):
            between()
            if number == leave.get(epoch):
                break
            try:
                batch = next(batches)
            except StopIteration:
                break
            except (ValueError, KeyError) as error:
                seen.append((type(error), "broken" in str(error) or "fifth" in str(error)))
                continue
            seen.append((batch.tolist(), torch.rand(1).item(), random.random()))
        del batches
    generator = loader.generator.get_state().tolist() if loader.generator else None
    return [*seen, torch.get_rng_state().tolist(), random.getstate(), generator]


def _other_init(worker: int) -> None:
    """Sets nothing; as a setting it is another."""


class Hasty:
    """A layer that has one batch fetched ahead."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self.held: list[Any] = []

    def __iter__(self) -> Hasty:
        return self

    def __next__(self) -> Any:
        batch = self.held.pop() if self.held else self._fetch()
        if isinstance(batch, Exception):
            try:
                raise batch
            finally:
                del batch
        self.held.append(self._fetch())
        return batch

    def _fetch(self) -> Any:
        try:
            return next(self.batches)
        except Exception as error:
            return error


def changes(workers: tuple[int, ...], length: int) -> Any:
    """What is switched before each batch: nothing, or a number of workers, prefetch, a layer."""
    one = st.tuples(st.sampled_from(workers), st.integers(2, 4), st.booleans(), st.booleans())
    return st.lists(st.none() | one | st.lists(one, min_size=2, max_size=2), max_size=length)


def switching(job: Job, loader: Any, plan: list[Any]) -> Callable[[], None]:
    """Called between batches, it does what is next in the plan."""
    todo, layer = iter(plan), [lambda: None]

    def switch(workers: int, prefetch: int, other: bool, hasty: bool) -> None:
        vars(loader).update(
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            worker_init_fn=_other_init if other else None,
        )
        layer.pop()()
        layer.append(job.wrap_batches(loader, Hasty) if hasty else lambda: None)
        job.hand_over()

    def between() -> None:
        wanted = next(todo, None)
        for one in wanted if isinstance(wanted, list) else [wanted] if wanted else []:
            switch(*one)

    return between


@many
@given(
    kind=st.sampled_from(sorted(LOADERS)),
    broken=st.none() | st.integers(0, COUNT - 1),
    leave=st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=2),
    plan=changes((0,), 40),
)
def test_in_one_process(kind: str, broken: int | None, leave: Any, plan: list[Any]) -> None:
    expected = program(loader_of(kind, broken), leave, lambda: None)
    loader = loader_of(kind, broken)
    with agent() as (job, _):
        assert program(loader, leave, switching(job, loader, plan)) == expected


def switched_on(number: int) -> BoostOrder:
    return BoostOrder("loader-workers", {"workers": 1 + number % 2, "prefetch_factor": 2})


def by_booster(booster: Booster, plan: list[Any]) -> Callable[[], None]:
    """`plan` says before each batch: off, on, or nothing."""
    todo = iter(plan)

    def between() -> None:
        wanted = next(todo, None)
        if wanted is False:
            booster.off("loader-workers")
        elif wanted:
            booster.on(switched_on(wanted))

    return between


def only_to_the_end(kind: str, leave: dict[int, int]) -> dict[int, int]:
    """Workers take indices ahead: torch's sampler may draw from a generator that it was given for
    the next epoch when the program leaves this one, as it would with workers of the program's own.
    """
    return {} if kind == "own generator" else leave


def children() -> list[Any]:
    gc.collect()  # an error that was fetched ahead and never told holds on to its iterator

    return [child for child in multiprocessing.active_children() if child.is_alive()]


@pytest.mark.slow
@few
@given(
    kind=st.sampled_from(sorted(set(LOADERS) - {"replacement"})),
    broken=st.none() | st.integers(0, COUNT - 1),
    leave=st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=2),
    plan=st.lists(st.none(), max_size=9).flatmap(
        lambda quiet: changes((0, 1, 2), 3).map(lambda plan: quiet + plan + quiet + plan)
    ),
)
def test_with_workers(kind: str, broken: int | None, leave: Any, plan: list[Any]) -> None:
    leave = only_to_the_end(kind, leave)
    expected = program(loader_of(kind, broken), leave, lambda: None)
    loader = loader_of(kind, broken)
    with agent() as (job, _):
        # Of workers that are there when an epoch begins `loader-workers` takes care, see below.
        written = dict(vars(loader))
        between = switching(job, loader, plan)
        assert program(loader, leave, between, lambda: vars(loader).update(written)) == expected
    assert not children()


@pytest.mark.slow
@few
@given(
    kind=st.sampled_from(sorted(set(LOADERS) - {"replacement"})),
    broken=st.none() | st.integers(0, COUNT - 1),
    leave=st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=2),
    plan=st.lists(st.sampled_from([None, None, None, False, 1, 2]), max_size=22),
)
def test_by_the_boost_itself(kind: str, broken: int | None, leave: Any, plan: list[Any]) -> None:
    leave = only_to_the_end(kind, leave)
    expected = program(loader_of(kind, broken), leave, lambda: None)
    loader = loader_of(kind, broken)
    before = dict(vars(loader))
    with agent() as (_, booster):
        assert program(loader, leave, by_booster(booster, plan)) == expected
        booster.off("loader-workers")
        assert vars(loader) == before
        assert not children()


def test_a_stream_is_never_switched() -> None:
    loader: DataLoader[Any] = DataLoader(Stream(), batch_size=2)
    torch.manual_seed(0)
    expected = [batch.tolist() for batch in loader]
    torch.manual_seed(0)
    with agent() as (job, booster):
        batches, found = iter(loader), []
        for batch in batches:
            found.append(batch.tolist())
            vars(loader).update(num_workers=1, prefetch_factor=2)
            job.hand_over()
            note = booster.on(switched_on(1))
            assert note is None or "IterableDataset" not in note.reason
            assert batches._num_workers == 0
    assert found == expected


class Pids(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, os.getpid()])


@pytest.mark.parametrize("settings_too", [False, True])
def test_workers_of_the_programs_own_stay(settings_too: bool) -> None:
    """For another layer nothing is started; for other settings, only for the rest of an epoch."""
    loader: DataLoader[Any] = DataLoader(
        Pids(), batch_size=BATCH, num_workers=1, prefetch_factor=2, persistent_workers=True
    )
    with agent() as (job, _):
        pids: list[set[int]] = []
        seen: list[int] = []
        for epoch in range(3):
            pids.append(set())
            for number, batch in enumerate(loader):
                seen += batch[:, 0].tolist()
                pids[-1] |= set(batch[:, 1].tolist())
                if number == 2 and epoch == 1:
                    job.wrap_batches(loader, Hasty)
                    vars(loader).update(prefetch_factor=3 if settings_too else 2)
                    job.hand_over()
    assert seen == 3 * list(range(COUNT))
    assert pids[0] == pids[2]
    assert len(pids[0]) == 1
    assert len(pids[1]) == (2 if settings_too else 1)
    del loader
    assert not children()


def _ordered(loader: Any, at: dict[int, Callable[[], None]]) -> list[float]:
    """One epoch's samples; `at` says what is done after which batch."""
    seen: list[float] = []
    for number, batch in enumerate(loader):
        seen += batch.tolist()
        at.get(number, lambda: None)()
    return seen


@pytest.mark.parametrize("fails_at", ["fork", "everything"])
def test_a_switch_that_fails_loses_no_sample(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise BlockingIOError("no more of that")

    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=BATCH)
    with agent() as (job, _):

        def switch() -> None:
            vars(loader).update(num_workers=1, prefetch_factor=2)
            with pytest.MonkeyPatch.context() as patch:
                if fails_at == "fork":
                    patch.setattr(os, "fork", fail)
                    job.hand_over()
                else:
                    patch.setattr(DataLoader, "_get_iterator", fail)
                    with pytest.raises(BlockingIOError):
                        job.hand_over()

        assert _ordered(loader, {2: switch}) == list(range(COUNT))
    assert not children()


def test_an_error_from_a_worker_does_not_keep_the_workers() -> None:
    """Not even until the garbage is collected: torch's traceback alone would be a circle."""
    gc.collect()
    gc.disable()
    try:
        with agent() as (_, booster):
            for early in (False, True):
                loader = loader_of("shuffle", 7)
                if early:
                    booster.on(switched_on(2))
                with contextlib.suppress(ValueError):
                    for number, _batch in enumerate(loader):
                        if number == 0 and not early:
                            booster.on(switched_on(2))
                booster.off("loader-workers")
                del loader
                assert not multiprocessing.active_children()
    finally:
        gc.enable()


def test_every_queue_has_its_thread() -> None:
    """Also where fewer batches are left than workers: see `fit_for_the_collector`."""
    loader: DataLoader[Any] = DataLoader(Numbers(count=4), batch_size=1)
    with agent() as (job, _):
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(3)]
        vars(loader).update(num_workers=2, prefetch_factor=2)
        job.hand_over()
        assert all(queue._thread is not None for queue in batches._index_queues)
        assert [*seen, *(batch.tolist() for batch in batches)] == [[0], [1], [2], [3]]
    assert not children()


class Slow(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            self.asked.set()
            assert self.go_on.wait(60)
        return super().__getitem__(index)


def test_a_thread_that_waits_for_a_batch_is_switched_after_it() -> None:
    data = Slow()
    loader: DataLoader[Any] = DataLoader(data, batch_size=BATCH)
    seen: list[float] = []
    with agent() as (job, _):
        batches = iter(loader)
        thread = threading.Thread(
            target=lambda: seen.extend(value for batch in batches for value in batch.tolist())
        )
        thread.start()
        assert data.asked.wait(60)
        first = batches._raw
        vars(loader).update(worker_init_fn=_other_init)
        job.hand_over()
        assert batches._raw is first
        data.go_on.set()
        thread.join(60)
        assert batches._raw is not first
    assert seen == list(range(COUNT))


class Noise(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(())


def test_workers_started_anew_draw_other_numbers() -> None:
    loader: DataLoader[Any] = DataLoader(Noise(), batch_size=BATCH)
    with agent() as (_, booster):
        moves = {at: lambda at=at: booster.on(switched_on(at)) for at in (0, 2, 4)}
        seen = [
            *_ordered(loader, moves),
            *_ordered(loader, {1: lambda: booster.on(switched_on(1))}),
        ]
    assert len(set(seen)) == 2 * COUNT


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted on Linux")
def test_the_limit_of_open_files_stays_where_many_are_open() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        undo = loader_workers._allow_open_files()
        files = [open(os.devnull) for _ in range(300)]  # noqa: SIM115
        undo()
        with open(os.devnull):
            pass
        for file in files:
            file.close()
        undo()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_workers_that_stay_are_not_pinned_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader: DataLoader[Any] = DataLoader(
        Numbers(), batch_size=BATCH, num_workers=1, persistent_workers=True
    )
    for _ in loader:
        pass
    with pytest.raises(Declined, match="keeps its workers"):
        loader_pin_memory.apply(Job(), loader, {})
    own: DataLoader[Any] = DataLoader(Numbers(), batch_size=BATCH)
    with agent() as (job, booster):
        assert booster.on(switched_on(2)) is None  # nothing is there yet
        assert _ordered(own, {}) == list(range(COUNT))
        assert own._iterator is not None
        loader_pin_memory.apply(job, own, {})  # to be started anew
        assert own._iterator is None
