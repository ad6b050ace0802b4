"""One recording, understood: what its tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place
from flatout.profiling.trace import device, flops, idle, processor, traffic, window
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.groups import grouped
from flatout.profiling.trace.host import Host, host
from flatout.profiling.trace.idle import Gaps, Syncs
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.places import Places, directions, places
from flatout.profiling.trace.recording import Category, Flags, Ints, Recording
from flatout.profiling.trace.twins import twins
from flatout.profiling.trace.window import Window


@dataclass(frozen=True)
class Source:
    """Where lines and shapes come from: the recording itself, or one with more detail."""

    recording: Recording
    places: Places
    twin: Ints
    """For each row of the recording its row here; NOBODY: it has none."""
    where: Ints
    """For each row of the recording its place: index into places.known; NOBODY: not known."""
    backward: Flags
    """For each row of the recording: whether it is in a backward pass."""

    def place(self, row: int) -> Place | None:
        """The line of this row of the recording."""
        number = int(self.where[row]) if row >= 0 else NOBODY
        return self.places.known[number] if number >= 0 else None


@dataclass(frozen=True)
class Seen:
    """A recording, its window, and who holds each instant of it."""

    recording: Recording
    host: Host
    work: Work
    window: Window
    main: int
    """The thread that takes the steps."""
    held: Segments
    """Owners are numbers of `order`; NOBODY: the device is idle."""
    gaps: Gaps
    syncs: Syncs
    source: Source

    @property
    def on_device(self) -> bool:
        """An accelerator trains; else the host does."""
        return bool(len(self.work.rows))

    @property
    def order(self) -> tuple[Kind, ...]:
        """The kinds that `held` numbers."""
        return device.ORDER if self.on_device else processor.ORDER

    @cached_property
    def rank(self) -> Ints:
        """Of each row of the host: in processor.ORDER."""
        return processor.ranks(self.recording, self.host)

    @cached_property
    def counted(self) -> Flags:
        """Whether each of the device's works was launched in one of the steps."""
        work, begin = self.work, self.recording.events.begin
        if not self.window.marks:
            return np.ones(len(work.rows), np.bool_)
        when = np.where(work.launched >= 0, work.launched, begin[work.rows])
        return self.window.inside(when) & ~work.orphaned

    @cached_property
    def rows(self) -> Ints:
        """Rows of the host in the steps, without the steps' own marks.

        Where a CPU trains: of the threads that train, not of those that help them.
        """
        events = self.recording.events
        found = self.host.rows[self.window.inside(events.begin[self.host.rows])]
        kept = ~self.recording.named(window.is_mark)[events.name[found]]
        if not self.on_device:
            training = processor.training_threads(self.recording, self.host, self.main)
            collective = self.rank[found] == processor.RANKS[Kind.COMMUNICATION]
            kept &= np.isin(events.thread[found], training) | collective
        rows: Ints = found[kept]
        return rows

    @cached_property
    def flops(self) -> Ints:
        """Of each row's own operator."""
        counted = self.recording.named(flops.counts)[self.recording.events.name[self.rows]]
        return self._by_call(
            self.rows[counted],
            lambda name, shapes, dtypes, concrete: flops.of_operator(name, shapes, concrete),
        )

    @cached_property
    def traffic(self) -> Ints:
        """Of each row's own operator, in bytes, none counted twice."""
        idle = [processor.RANKS[kind] for kind in (Kind.PYTHON, Kind.OTHER, Kind.WAIT_DATA)]
        computing = ~np.isin(self.rank, idle) | (self.flops > 0)
        found = self._by_call(self.rows[computing[self.rows]], traffic.of_operator)
        for mine, nested in self.host.nests.values():
            found[mine] = traffic.once(nested, found[mine], self.flops[mine] > 0)
        return found

    def _by_call(self, rows: Ints, amount: Callable[[str, str, str, str], int]) -> Ints:
        """`amount` of name, shapes, dtypes and concrete inputs, for those with shapes; else 0."""
        found = np.zeros(len(self.recording.events), np.int64)
        detail, twin = self.source.recording, self.source.twin
        events = detail.events
        rows = rows[twin[rows] >= 0]
        rows = rows[events.shapes[twin[rows]] >= 0]
        columns = (events.name, events.shapes, events.dtypes, events.concrete)
        groups = grouped(*(column[twin[rows]] for column in columns))
        counts = [
            amount(
                detail.names[name],
                detail.shapes[shapes],
                detail.dtypes[dtypes] if dtypes >= 0 else "",
                detail.concrete[concrete] if concrete >= 0 else "",
            )
            for name, shapes, dtypes, concrete in groups.keys.T.tolist()
        ]
        found[rows] = np.array(counts, np.int64)[groups.group]
        return found

    def mean(self, count: float) -> float:
        """Of one step."""
        return float(count) / self.window.steps

    def per_step(self, ns: float) -> float:
        """Milliseconds of one step."""
        return float(ns) / 1e6 / self.window.steps


def look(
    recording: Recording,
    detail: Recording | None = None,
    roots: Sequence[Path] = (),
    span: tuple[int, int] | None = None,
) -> Seen:
    """Understand a recording. `span`: take this time (ns) for the window instead of the steps."""
    found = host(recording)
    work = device.work(recording, found)
    steps = window.window(recording, found, work)
    if span is not None:
        steps = Window(*span, ())
    main = processor.main_thread(recording, found)
    none = tuple(np.empty(0, np.int64) for _ in range(4))
    waiting, gaps = Syncs(*none[:3]), Gaps(*none)
    if len(work.rows):
        waiting = idle.syncs(recording, work)
        held = work.held(recording, steps.begin, steps.end)
        gaps = idle.gaps(recording, found, work, held, waiting, main)
    else:
        rank = processor.ranks(recording, found)
        held = processor.held(recording, found, rank, main, steps.begin, steps.end)
    source = _source(recording, found, steps, detail, roots)
    return Seen(recording, found, work, steps, main, held, gaps, waiting, source)


def _source(
    recording: Recording,
    found: Host,
    steps: Window,
    detail: Recording | None,
    roots: Sequence[Path],
) -> Source:
    """Lines and shapes, from the recording with more detail where there is one."""
    if detail is None or detail is recording:
        known = places(recording, found, roots)
        twin = np.arange(len(recording.events))
        return Source(recording, known, twin, known.where, known.backward)
    theirs = host(detail)
    known = places(detail, theirs, roots)
    marks = window.marks(detail, theirs)
    twin = twins(recording, found, steps.marks, detail, theirs, marks, known.where)
    where = np.where(twin >= 0, known.where[twin], NOBODY)
    # Autograd's own numbers say more surely than the order which forward a backward belongs to.
    backward, forward = directions(recording, found)
    where = np.where(forward >= 0, where[forward], where)
    inheriting = recording.events.category == Category.RUNTIME
    around = np.where(inheriting & (found.parent >= 0), where[found.parent], NOBODY)
    return Source(detail, known, twin, np.where(inheriting, around, where), backward)
