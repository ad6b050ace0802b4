"""One recording with its time attributed: the basis of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place
from flatout.profiling.trace import (
    closure_frames,
    device,
    flops,
    idle,
    intervals,
    processor,
    traffic,
    window,
)
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.groups import grouped
from flatout.profiling.trace.host import Host, host, with_called
from flatout.profiling.trace.idle import Gaps, Syncs
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.places import Places, directions, places
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording
from flatout.profiling.trace.twins import twins
from flatout.profiling.trace.window import TimeWindow


@dataclass(frozen=True)
class LineSource:
    """Where lines and shapes come from: the recording itself, or one with more detail."""

    recording: TraceRecording
    places: Places
    twin: Ints
    """For each row of the recording its row in this source; NOBODY if none."""
    where: Ints
    """For each row of the recording its place: index into places.entries; NOBODY if unknown."""
    backward: Flags
    """For each row of the recording: whether it is in a backward pass."""

    def place(self, row: int) -> Place | None:
        """The line of this row of the recording."""
        number = int(self.where[row]) if row >= 0 else NOBODY
        return self.places.entries[number] if number >= 0 else None


@dataclass(frozen=True)
class Attribution:
    """A recording, its window, and the owner of each instant."""

    recording: TraceRecording
    host: Host
    work: Work
    window: TimeWindow
    main: int
    """The thread that takes the steps."""
    held: Segments
    """Owners are numbers of `order`; NOBODY if the device is idle."""
    gaps: Gaps
    syncs: Syncs
    source: LineSource

    @property
    def on_device(self) -> bool:
        """Whether an accelerator trains; else the host does."""
        return bool(len(self.work.rows))

    @property
    def order(self) -> tuple[Kind, ...]:
        """The kinds, as numbered in `held`."""
        return device.ORDER if self.on_device else processor.ORDER

    @cached_property
    def rank(self) -> Ints:
        """Rank of each row of the host in processor.ORDER."""
        return processor.ranks(self.recording, self.host)

    @cached_property
    def counted(self) -> Flags:
        """Whether each piece of device work was launched in one of the steps."""
        work, begin = self.work, self.recording.events.begin
        if not self.window.marks:
            return np.ones(len(work.rows), np.bool_)
        launch_times = np.where(work.launched >= 0, work.launched, begin[work.rows])
        return self.window.inside(launch_times) & ~work.orphaned

    @cached_property
    def rows(self) -> Ints:
        """Rows of the host in the steps, without the steps' own marks.

        Where a CPU trains: only rows of training threads, not of helper threads.
        """
        events = self.recording.events
        step_rows = self.host.rows[self.window.inside(events.begin[self.host.rows])]
        is_counted = ~self.recording.named(window.is_mark)[events.name[step_rows]]
        if not self.on_device:
            training = processor.training_threads(self.recording, self.host, self.main)
            collective = self.rank[step_rows] == processor.RANKS[Kind.COMMUNICATION]
            is_counted &= np.isin(events.thread[step_rows], training) | collective
        rows: Ints = step_rows[is_counted]
        return rows

    @cached_property
    def flops(self) -> Ints:
        """Operations of each row's own operator."""
        has_formula = self.recording.named(flops.counts)[self.recording.events.name[self.rows]]
        return self._by_call(
            self.rows[has_formula],
            lambda name, shapes, dtypes, concrete: flops.of_operator(name, shapes, concrete),
        )

    @cached_property
    def traffic(self) -> Ints:
        """Bytes moved by each row's own operator, none counted twice."""
        idle = [processor.RANKS[kind] for kind in (Kind.PYTHON, Kind.OTHER, Kind.WAIT_DATA)]
        computing = ~np.isin(self.rank, idle) | (self.flops > 0)
        row_bytes = self._by_call(self.rows[computing[self.rows]], traffic.of_operator)
        for thread_rows, nested in self.host.nests.values():
            row_bytes[thread_rows] = traffic.once(
                nested, row_bytes[thread_rows], self.flops[thread_rows] > 0
            )
        return row_bytes

    def _by_call(self, rows: Ints, amount: Callable[[str, str, str, str], int]) -> Ints:
        """`amount` of name, shapes, dtypes and concrete inputs, for those with shapes; else 0."""
        totals = np.zeros(len(self.recording.events), np.int64)
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
        totals[rows] = np.array(counts, np.int64)[groups.group]
        return totals

    def exposed(self, rows: Ints, rank: int) -> Ints:
        """How much (ns) of each row's time is owned by its kind."""
        events = self.recording.events
        return self.exposed_between(events.begin[rows], events.end[rows], rank)

    def exposed_between(self, low: Ints, high: Ints, rank: int) -> Ints:
        """How much (ns) of each [low, high) is owned by this kind."""
        owned = self.held.of(rank)
        return intervals.covered(owned.begin, owned.end, low, high)

    def mean(self, count: float) -> float:
        """The mean per step."""
        return float(count) / self.window.steps

    def per_step(self, ns: float) -> float:
        """Milliseconds per step."""
        return float(ns) / 1e6 / self.window.steps


def look(
    recording: TraceRecording,
    detail: TraceRecording | None = None,
    roots: Sequence[Path] = (),
    span: tuple[int, int] | None = None,
) -> Attribution:
    """Attribute a recording's time. `span`: use this interval (ns) as the window, not the steps."""
    host_side = host(recording)
    work = device.work(recording, host_side)
    steps = window.window(recording, host_side, work)
    if span is not None:
        steps = TimeWindow(*span, ())
    source = _source(recording, host_side, steps, detail, roots)
    # For each row of the recording 1 in an optimizer's closure, 0 in none, NOBODY unknown.
    in_closure = closure_frames.called(source.recording).astype(np.int64)
    called = np.where(source.twin >= 0, in_closure[source.twin], NOBODY)
    if (called > 0).any():
        host_side = with_called(recording, host_side, called)
        work = device.work(recording, host_side)
    main = processor.main_thread(recording, host_side)
    empty = tuple(np.empty(0, np.int64) for _ in range(4))
    sync_calls, gaps = Syncs(*empty[:3]), Gaps(*empty)
    if len(work.rows):
        sync_calls = idle.syncs(recording, work)
        held = work.held(recording, steps.begin, steps.end)
        gaps = idle.gaps(recording, host_side, work, held, sync_calls, main)
    else:
        rank = processor.ranks(recording, host_side)
        held = processor.held(recording, host_side, rank, main, steps.begin, steps.end)
    return Attribution(recording, host_side, work, steps, main, held, gaps, sync_calls, source)


def _source(
    recording: TraceRecording,
    host_side: Host,
    steps: TimeWindow,
    detail: TraceRecording | None,
    roots: Sequence[Path],
) -> LineSource:
    """Lines and shapes, from the recording with more detail if there is one."""
    if detail is None or detail is recording:
        step_places = places(recording, host_side, roots)
        twin = np.arange(len(recording.events))
        return LineSource(recording, step_places, twin, step_places.where, step_places.backward)
    detail_host = host(detail)
    step_places = places(detail, detail_host, roots)
    marks = window.marks(detail, detail_host)
    twin = twins(recording, host_side, steps.marks, detail, detail_host, marks, step_places.where)
    where = np.where(twin >= 0, step_places.where[twin], NOBODY)
    # Autograd's numbers identify a backward's forward more reliably than the order does.
    backward, forward = directions(recording, host_side)
    where = np.where(forward >= 0, where[forward], where)
    inherits = recording.events.category == Category.RUNTIME
    parent_place = np.where(inherits & (host_side.parent >= 0), where[host_side.parent], NOBODY)
    return LineSource(detail, step_places, twin, np.where(inherits, parent_place, where), backward)
