"""Why the device did nothing: each instant of a gap gets one cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.nouns.anatomy import WAITS
from flatout.profiling.trace import intervals, kinds, operators
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.recording import Category, Flags, Ints, Recording

QUEUED_NS = 5_000
"""A kernel whose launch returned this long before the gap was there already: not the host's."""
DATA, HOST, SYNC, RANKS, OTHER = range(len(WAITS))


@dataclass(frozen=True)
class Gaps:
    """Pieces of idle time, each of one cause."""

    begin: Ints
    end: Ints
    cause: Ints
    """Index into anatomy.WAITS."""
    doing: Ints
    """Row of what the host did; NOBODY: nothing that was recorded."""


@dataclass(frozen=True)
class Syncs:
    """Calls in which the host waited for the device."""

    rows: Ints
    begin: Ints
    end: Ints


def syncs(recording: Recording, work: Work) -> Syncs:
    """Calls of the runtime that synchronise, copies from pageable memory among them.

    Where the trace has no calls of the runtime: the operators that need one.
    """
    events = recording.events
    named = recording.named(operators.SYNCS.__contains__)[events.name]
    rows = np.flatnonzero(named & (events.category == Category.RUNTIME))
    blocking = recording.named(lambda name: kinds.pinned(name) is False)[events.name[work.rows]]
    copies = work.call[blocking & (work.call >= 0)]
    back = recording.named(lambda name: "DtoH" in name)[events.name[work.rows]]
    rows = np.union1d(rows, copies[np.isin(copies, work.call[back])])
    if not len(recording.rows(Category.RUNTIME)):
        wanted = recording.named(operators.SYNC_OPERATORS.__contains__)[events.name]
        rows = np.flatnonzero(wanted & (events.category == Category.OPERATOR))
    return Syncs(rows, events.begin[rows], events.end[rows])


def gaps(
    recording: Recording, host: Host, work: Work, held: Segments, waiting: Syncs, main: int
) -> Gaps:
    """The causes of all idle time in `held`. `main`: the thread that takes the steps."""
    idle = held.of(NOBODY)
    if not len(idle.begin):
        return Gaps(*(np.empty(0, np.int64) for _ in range(4)))
    following = _following(recording, work, idle.end)
    cause = np.full(len(idle.begin), HOST if len(host.rows) else OTHER, np.int64)
    queued = _queued(recording, work, following, idle)
    sync = np.where(queued, NOBODY, _dry(waiting, idle.begin))
    cause[queued] = OTHER
    cause[sync >= 0] = SYNC
    doing = np.where(following >= 0, work.operator[following], NOBODY)
    silent = (following < 0) & (sync < 0)
    doing = np.where(silent, host.around(main, (idle.begin + idle.end) // 2), doing)
    doing = np.where(sync >= 0, waiting.rows[sync] if len(waiting.rows) else NOBODY, doing)
    whole = Gaps(idle.begin, idle.end, cause, doing)
    for flag, number in (
        (_waiting_for_ranks(recording), RANKS),
        (_outermost(host, host.loading), DATA),
    ):
        whole = _overlaid(recording, whole, np.flatnonzero(flag), number)
    return whole


def _following(recording: Recording, work: Work, at: Ints) -> Ints:
    """The work that ends each gap: index into work.rows; NOBODY: the window ended first."""
    begins = recording.events.begin[work.rows]
    found = np.searchsorted(begins, at)
    there = found < len(begins)
    there[there] = begins[found[there]] == at[there]
    return np.where(there, found, NOBODY)


def _queued(recording: Recording, work: Work, following: Ints, idle: Segments) -> Flags:
    """Gaps whose next kernel had been launched well before: the device had work in its queue."""
    call = np.where(following >= 0, work.call[following], NOBODY)
    done = recording.events.end[call]
    found: Flags = (call >= 0) & (done + QUEUED_NS < idle.begin)
    return found


def _dry(waiting: Syncs, at: Ints) -> Ints:
    """The synchronising call in which the host was when the device went idle; NOBODY: none."""
    if not len(waiting.rows):
        return np.full(len(at), NOBODY, np.int64)
    found = np.searchsorted(waiting.begin, at, side="right") - 1
    inside = (found >= 0) & (waiting.end[found] >= at)
    return np.where(inside, found, NOBODY)


def _outermost(host: Host, flag: Flags) -> Flags:
    """Rows with the flag whose parent has it not."""
    around = (host.parent >= 0) & flag[host.parent]
    found: Flags = flag & ~around
    return found


def _waiting_for_ranks(recording: Recording) -> Flags:
    events = recording.events
    named = recording.named(operators.RANKS.search)[events.name]
    found: Flags = named & np.isin(events.category, (Category.OPERATOR, Category.ANNOTATION))
    return found


def _overlaid(recording: Recording, found: Gaps, rows: Ints, cause: int) -> Gaps:
    """Cut the gaps at the borders of these rows, and give what lies inside this cause."""
    events = recording.events
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    first, last = intervals.union(events.begin[rows], events.end[rows])
    if not len(first):
        return found
    borders = np.unique(np.r_[first, last])
    low = np.searchsorted(borders, found.begin, side="right")
    count = np.maximum(np.searchsorted(borders, found.end, side="left") - low, 0)
    piece = np.repeat(np.arange(len(found.begin)), count + 1)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
    at = low[piece] + number
    begin = np.where(number == 0, found.begin[piece], borders[np.maximum(at - 1, 0)])
    final = number == count[piece]
    end = np.where(final, found.end[piece], borders[np.minimum(at, len(borders) - 1)])
    which = np.searchsorted(first, begin, side="right") - 1
    inside = (which >= 0) & (begin < last[which])
    row = rows[np.maximum(np.searchsorted(events.begin[rows], begin, side="right") - 1, 0)]
    return Gaps(
        begin,
        end,
        np.where(inside, cause, found.cause[piece]),
        np.where(inside, row, found.doing[piece]),
    )
