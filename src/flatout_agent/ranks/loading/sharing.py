"""Iterators of loaders ask for tasks in place of indices, and give the program whole batches.

In front of torch's `_next_index`, which every batch's indices come from, also those that go to
workers ahead of time, and of `__next__`, which gives the program its batches. Exchanges take place
in `__next__` only, in the main thread: there all ranks come by in the same order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch.utils.data import dataloader

from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.loading import joining, tasks
from flatout_agent.ranks.loading.forms import SAMPLES
from flatout_agent.ranks.loading.packing import unpacked
from flatout_agent.ranks.loading.plans import LoadingPlan, Plans
from flatout_agent.ranks.loading.proof import LookFound
from flatout_agent.ranks.loading.streams import Streams
from flatout_agent.ranks.loading.tasks import Fetched, Task
from flatout_agent.ranks.refusal import Refused
from flatout_agent.ranks.rows import Split
from flatout_agent.replacing import Undo, in_reverse, replaced
from flatout_agent.speedups.samples import samples

NAME = "_flatout_sharing"
"""Attribute of an iterator whose batches are shared, or may be."""
MAP_STYLE = 0
"""torch's number of map-style datasets."""
MOST_NOTES = 50
DRAWS = "reading it draws random numbers: each rank would draw others than one process"
OTHER_ROWS = "the ranks do not read the same rows of it"
OTHER_RANK = "another rank's rows could not be read, or did not fit"


class Uncollated(NamedTuple):
    """All samples of a batch, in order."""

    rows: list[Any]
    whole: Any
    """Their indices."""
    began: float
    """When they began to be exchanged."""


class Sharing:
    """The loaders of this rank's program."""

    def __init__(
        self,
        group: RankGroup,
        guarded: Callable[..., Any],
        safely: Callable[..., Any],
        apart: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """safely: calls (name, function, *arguments) where a fault costs the sharing alone; apart:
        what this rank's own rows are read in, so that no other rank takes part.
        """
        self.group, self.guarded, self._safely = group, guarded, safely
        self.plans = Plans()
        self._apart = apart
        self._inside = False
        """This rank's own rows are being read."""
        self._left = False

    def install(self) -> Undo:
        """Stand in front of torch's iterators."""
        tasks.watch_fetching()
        tasks.apart = self._alone
        kind: Any = dataloader._BaseDataLoaderIter
        begin, next_index, next_batch, reset = (
            kind.__init__, kind._next_index, kind.__next__, kind._reset,
        )  # fmt: skip
        sharing = self

        def __init__(self: Any, loader: Any) -> None:  # noqa: N807
            begin(self, loader)
            vars(self)[NAME] = sharing._safely("loading", sharing.begun, self, loader)

        def _next_index(self: Any) -> Any:
            index = next_index(self)
            epoch: SharedEpoch | None = vars(self).get(NAME)
            return index if epoch is None else sharing.guarded(epoch.asked, self, index)

        def __next__(self: Any) -> Any:  # noqa: N807
            epoch: SharedEpoch | None = vars(self).get(NAME)
            return next_batch(self) if epoch is None else epoch.next(self, next_batch)

        def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
            reset(self, *args, **kwargs)
            epoch: SharedEpoch | None = vars(self).get(NAME)
            if epoch is not None:
                epoch.begin_again()

        return in_reverse(
            [
                replaced(kind, "__init__", __init__),
                replaced(kind, "_next_index", _next_index),
                replaced(kind, "__next__", __next__),
                replaced(kind, "_reset", _reset),
            ]
        )

    def leave(self) -> None:
        """Share nothing any more: this process is no rank."""
        self._left = True

    @property
    def may_exchange(self) -> bool:
        """Whether all ranks are here, at the same place of the program."""
        in_order = threading.current_thread() is threading.main_thread()
        return in_order and not (self._left or self._inside)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            with self._apart():
                yield
        finally:
            self._inside = before

    def begun(self, iterator: Any, loader: Any) -> SharedEpoch | None:
        """An iterator has been made; None: its batches are none of ours."""
        if self._left or self._inside:
            return None
        plan = self.plans.find(loader) or self.plans.add(loader, _plan(iterator, loader))
        if plan.status == "all":
            return None
        if not self.may_exchange:
            return None
        return SharedEpoch(self, plan)

    def unsettled(self) -> int:
        """Batches of a loader, at most, until it is decided how it is read."""
        return max((plan.looks for plan in self.plans.all), default=0)

    def seen(self) -> tuple[wire.LoaderSeen, ...]:
        """What was found out about the loaders."""
        return tuple(plan.seen() for plan in self.plans.all[-MOST_NOTES:])


def _plan(iterator: Any, loader: Any) -> LoadingPlan:
    """Of a loader that is iterated for the first time."""
    return LoadingPlan(type(loader.dataset).__name__, loader.num_workers, _why_never(iterator))


def _why_never(iterator: Any) -> str:
    """Why such batches cannot be shared; empty: they may be."""
    kinds = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
    if iterator._dataset_kind != MAP_STYLE:
        return "it is not a map-style dataset"
    if not iterator._auto_collation:
        return "it gives single samples, or its dataset makes the batches"
    if type(iterator) not in kinds:
        return f"its iterator is a {type(iterator).__name__}"
    if not getattr(iterator, "_in_order", True):
        return "its workers' batches come in any order"
    return ""


class SharedEpoch:
    """One iterator: the batches that it has asked for and not yet given."""

    def __init__(self, sharing: Sharing, plan: LoadingPlan) -> None:
        self.sharing, self.plan = sharing, plan
        self.group = sharing.group
        self.tasks: dict[int, Task] = {}
        """Asked for, in order."""
        self._asked = self._given = 0

    def begin_again(self) -> None:
        """Persistent workers begin another epoch: what they were asked for is dropped."""
        self.tasks.clear()
        self._asked = self._given = 0

    # Asking -------------------------------------------------------------------------------------

    def asked(self, iterator: Any, index: Any) -> Any:
        """What the dataset is asked for in place of these indices."""
        if self.plan.status == "all" and not self.tasks:
            return index
        fetcher = vars(iterator).get("_dataset_fetcher")
        torchs = torch.utils.data._utils.fetch._MapDatasetFetcher
        if fetcher is not None and type(fetcher) is not torchs:
            self.plan.leave("a boost reads its samples in another way")
            return index
        number, self._asked = self._asked, self._asked + 1
        if type(index) is not list or len(index) < self.group.size:
            task = Task(number, "whole", index)
        else:
            looks = sum(task.kind == "prove" for task in self._waiting)
            kind = self.plan.kind(looks)
            counts = tuple(Split.even(self.group, len(index)).counts)
            whole = list(index)  # a sampler may go on to use its own
            task = Task(number, kind, whole, self.group.rank, counts, self.plan.collated)
        self.tasks[number] = task
        return task

    # Giving -------------------------------------------------------------------------------------

    def next(self, iterator: Any, next_batch: Callable[[Any], Any]) -> Any:
        """The next batch. Raises what the program's own code raises."""
        received, began = getattr(iterator, "_rcvd_idx", None), time.perf_counter()
        try:
            data = next_batch(iterator)
        except Exception:
            if self.tasks and (received is None or iterator._rcvd_idx != received):
                del self.tasks[next(iter(self.tasks))]  # its own code failed: it is given up
            raise
        if type(data) is not Fetched:
            return data
        waited = time.perf_counter() - began
        batch, again = self.sharing.guarded(self._received, iterator, data, waited)
        if isinstance(batch, Uncollated):
            batch, again = self._collated(iterator, batch)
        if self.plan.status != "shared" and (again or any(map(Task.is_part, self._waiting))):
            self._read_again(iterator, again)
        return self.next(iterator, next_batch) if again else batch

    @property
    def _waiting(self) -> list[Task]:
        return list(self.tasks.values())

    def _received(self, iterator: Any, fetched: Fetched, waited: float) -> tuple[Any, list[Any]]:
        """(the batch, []), or (None, [the indices of a batch that must be read whole])."""
        task = self.tasks.pop(fetched.number)
        position, self._given = self._given, self._given + 1
        if not self.sharing.may_exchange:
            self.plan.leave("it is read in a thread or a process of the script's own")
        elif task.is_part():
            return self._joined(iterator, task, fetched)
        elif fetched.found is not None:
            self._looked(iterator, task, fetched, fetched.found)
            self.plan.waited_again(waited - fetched.found.spent_s, self.group)
        else:
            self.plan.waited(waited, position, self.group)
        return (None, [task.whole]) if task.is_part() else (fetched.data, [])

    def _joined(self, iterator: Any, task: Task, fetched: Fetched) -> tuple[Any, list[Any]]:
        plan = self.plan
        form = SAMPLES if task.kind == "samples" else plan.form
        if form is None or (task.kind == "own" and form == SAMPLES):
            return None, [task.whole]  # asked for before another iterator has shown that it is none
        part = joining.unread(fetched.failed)
        if not fetched.failed:
            part = joining.part_of(form, fetched.data, task.counts[self.group.rank])
        said = joining.met(self.group, task.whole, part, fetched.random)
        if not said.same_indices:
            raise Refused(
                "the batches differ between the ranks: their loaders have chosen other rows",
                "seed what the order is drawn from at the script's start",
            )
        if said.random:
            plan.leave(DRAWS)  # its streams were put back: what is drawn now is one process's
            return None, [task.whole]
        if said.state != joining.FITS:
            gives_up = plan.leave if said.state == joining.UNREAD else plan.look_again
            gives_up(part.failed or OTHER_RANK)
            return None, [task.whole]
        plan.shared += 1
        began = time.perf_counter()
        batch = joining.whole_of(self.group, form, part, task.counts, said.lengths)
        if form == SAMPLES:
            return Uncollated(batch, task.whole, began), []
        plan.exchanged(time.perf_counter() - began)
        return self._pinned(iterator, batch), []

    def _collated(self, iterator: Any, uncollated: Uncollated) -> tuple[Any, list[Any]]:
        batch, plan = None, self.plan
        try:
            batch, done = iterator._collate_fn(uncollated.rows), True
        except Exception:  # of the program's own code: it is to be raised where it is read
            done = False
        if not self.sharing.guarded(self.group.agreed, done):
            plan.leave("its samples cannot be collated outside of its workers")
            return None, [uncollated.whole]
        plan.exchanged(time.perf_counter() - uncollated.began)
        return self._pinned(iterator, batch), []

    def _pinned(self, iterator: Any, batch: Any) -> Any:
        if not iterator._pin_memory:
            return batch
        return tasks.pinned(batch, getattr(iterator, "_pin_memory_device", None))

    def _looked(self, iterator: Any, task: Task, fetched: Fetched, found: LookFound) -> None:
        """All ranks have read a whole batch: is it what they would put together?"""
        plan, group, form = self.plan, self.group, found.form
        begin, count = sum(task.counts[: group.rank]), task.counts[group.rank]
        if form is None:
            part = joining.unread(found.reason)
        elif form == SAMPLES:
            part = joining.part_of(form, found.rows[group.rank], count)
        else:
            part = joining.part_of(form, form.part(fetched.data, begin, count), count)
        group.agreed(True)  # from here on it is an exchange alone that takes time
        began = time.perf_counter()
        said = joining.met(group, task.whole, part, fetched.random)
        if said.random:
            plan.leave(DRAWS)
            return
        if said.state != joining.FITS or not said.same_indices or form is None:
            plan.leave(part.failed or (OTHER_RANK if said.same_indices else OTHER_ROWS))
            return
        if plan.form not in (None, form):
            plan.look_again(found.uncut or "its batches are not all built alike")
            return
        whole = joining.whole_of(group, form, part, task.counts, said.lengths)
        exchange_s, read = time.perf_counter() - began, fetched.data
        if form == SAMPLES:
            read = [row for rows in found.rows for row in unpacked(rows)[0]]
        if not group.agreed(group.alone or samples.same(whole, read)):
            plan.leave(OTHER_ROWS)
            return
        if form == SAMPLES:
            exchange_s += self._collating_s(iterator, whole)
        plan.exchanged(exchange_s)
        plan.looked(form, found.uncut, len(task.whole))

    def _collating_s(self, iterator: Any, rows: list[Any]) -> float:
        """How long it takes to collate these samples, which leaves nothing behind."""
        before, began = Streams([]), time.perf_counter()
        with suppress(Exception):
            iterator._collate_fn(rows)
        before.put_back()
        return time.perf_counter() - began

    # Reading again ------------------------------------------------------------------------------

    def _read_again(self, iterator: Any, first: list[Any]) -> None:
        """Ask once more, whole, for batches in `first` and all that are under way: in order."""
        rest, iterator._sampler_iter = iterator._sampler_iter, iter(())
        again = [*first, *(task.whole for task in self._waiting)]
        for _ in range(len(self.tasks)):
            with suppress(Exception):  # of the program's own code: it is asked again
                iterator._next_data()
        self.tasks.clear()
        iterator._sampler_iter = itertools.chain(again, rest)
        for _ in range(iterator._num_workers and iterator._prefetch_factor * iterator._num_workers):
            iterator._try_put_index()
