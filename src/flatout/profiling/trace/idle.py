"""Why the device was idle: each instant of a gap gets one cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from flatout.nouns.anatomy import WAITS
from flatout.profiling.trace import intervals, kinds, operators
from flatout.profiling.trace.device import Work
from flatout.profiling.trace.host import Host
from flatout.profiling.trace.intervals import NOBODY, Segments
from flatout.profiling.trace.recording import DEVICE, Category, Flags, Ints, TraceRecording

QUEUED_NS = 5_000
"""A kernel whose launch returned this long before the gap was already queued: the host is not
the cause."""
SHORT_NS = 20_000
"""A shorter gap before queued work is the device's own: it takes a moment to start each kernel."""
DATA, HOST, SYNC, RANKS, OTHER, QUEUED, UNRECORDED = range(len(WAITS))
ON_DEVICE = (QUEUED, UNRECORDED)
"""Causes that lie with the device, not the host."""

LEAST_LAUNCHES = 100
"""Fewest recorded launches from which anything is concluded."""
DISTANCE = 16
"""CUDA numbers its calls one by one, and a complete trace has every second to fifth of them. If the
median distance between recorded numbers is above this, most launches are missing."""
LOST = 0.10
"""Share of the launches whose kernels are not in the trace."""


@dataclass(frozen=True)
class Gaps:
    """Pieces of idle time, each with one cause."""

    begin: Ints
    end: Ints
    cause: Ints
    """Index into anatomy.WAITS."""
    doing: Ints
    """Row of what the host did; NOBODY if nothing was recorded."""


@dataclass(frozen=True)
class Syncs:
    """Calls in which the host waited for the device."""

    rows: Ints
    begin: Ints
    end: Ints


def syncs(recording: TraceRecording, work: Work) -> Syncs:
    """Runtime calls that synchronise, including copies of pageable memory.

    If the trace has no runtime calls, the operators that need one.
    """
    events = recording.events
    is_sync = recording.named(operators.SYNCS.__contains__)[events.name]
    rows = np.flatnonzero(is_sync & (events.category == Category.RUNTIME))
    blocking = recording.named(lambda name: kinds.pinned(name) is False)[events.name[work.rows]]
    copies = work.call[blocking & (work.call >= 0)]
    to_host = recording.named(lambda name: "DtoH" in name)[events.name[work.rows]]
    rows = np.union1d(rows, copies[np.isin(copies, work.call[to_host])])
    if not len(recording.rows(Category.RUNTIME)):
        needs_result = recording.named(operators.SYNC_OPERATORS.__contains__)[events.name]
        rows = np.flatnonzero(needs_result & (events.category == Category.OPERATOR))
    return Syncs(rows, events.begin[rows], events.end[rows])


def gaps(
    recording: TraceRecording,
    host: Host,
    work: Work,
    owners: Segments,
    sync_calls: Syncs,
    main: int,
) -> Gaps:
    """The causes of all idle time in `owners`. `main`: the thread that takes the steps."""
    idle = owners.of(NOBODY)
    if not len(idle.begin):
        return Gaps(*(np.empty(0, np.int64) for _ in range(4)))
    begins = recording.events.begin[work.rows]
    indexes = np.searchsorted(begins, idle.end)
    is_begin = indexes < len(begins)
    is_begin[is_begin] = begins[indexes[is_begin]] == idle.end[is_begin]
    following = np.where(is_begin, indexes, NOBODY)  # the work that ends each gap
    cause = np.full(len(idle.begin), HOST if len(host.rows) else OTHER, np.int64)
    call = np.where(following >= 0, work.call[following], NOBODY)
    # The next kernel had been launched well before: the device had queued work.
    queued = (call >= 0) & (recording.events.end[call] + QUEUED_NS < idle.begin)
    sync = np.where(queued, NOBODY, _sync_at(sync_calls, idle.begin))
    cause[queued] = OTHER
    cause[sync >= 0] = SYNC
    cause = np.where(_unrecorded(recording, work, following, idle, queued), UNRECORDED, cause)
    is_short = (idle.end - idle.begin <= SHORT_NS) & np.isin(cause, (OTHER, UNRECORDED))
    cause[queued & is_short] = QUEUED
    doing = np.where(following >= 0, work.operator[following], NOBODY)
    unexplained = (following < 0) & (sync < 0)
    doing = np.where(unexplained, host.around(main, (idle.begin + idle.end) // 2), doing)
    doing = np.where(sync >= 0, sync_calls.rows[sync] if len(sync_calls.rows) else NOBODY, doing)
    pieces = Gaps(idle.begin, idle.end, cause, doing)
    waits_for_ranks = recording.named(operators.RANKS.search)[recording.events.name] & np.isin(
        recording.events.category, (Category.OPERATOR, Category.ANNOTATION)
    )
    outermost_loading = host.loading & ~((host.parent >= 0) & host.loading[host.parent])
    for flag, number in (
        (_overhead(recording, operators.RECORDER), OTHER),
        (_overhead(recording, operators.LOADING), HOST),
        (waits_for_ranks, RANKS),
        (outermost_loading, DATA),
    ):
        pieces = _overlaid(recording, pieces, np.flatnonzero(flag), number)
    return pieces


def _unrecorded(
    recording: TraceRecording, work: Work, following: Ints, idle: Segments, queued: Flags
) -> Flags:
    """Gaps in which the device had work that the trace lacks.

    All streams are idle in a gap. Queued work then has nothing left to wait for on this device
    except the earlier parts of its own CUDA graph, and within a graph it never waits for the host.
    """
    if launches_missing(recording):
        return np.ones(len(idle.begin), np.bool_)
    is_graph = recording.named(operators.GRAPH_LAUNCH.fullmatch)[recording.events.name]
    graph_work = (work.call >= 0) & is_graph[work.call]
    if not graph_work.any():
        return np.zeros(len(idle.begin), np.bool_)
    rows, calls = work.rows[graph_work], work.call[graph_work]
    launches, number = np.unique(calls, return_inverse=True)
    first = np.full(len(launches), np.iinfo(np.int64).max)
    last = np.zeros(len(launches), np.int64)
    np.minimum.at(first, number, recording.events.begin[rows])
    np.maximum.at(last, number, recording.events.end[rows])
    covered = intervals.covered(first, last, idle.begin, idle.end)
    starting = queued & (following >= 0) & graph_work[following]
    unrecorded: Flags = starting | (covered >= idle.end - idle.begin)
    return unrecorded


def _sync_at(sync_calls: Syncs, at: Ints) -> Ints:
    """The synchronising call the host was in when the device went idle; NOBODY if none."""
    if not len(sync_calls.rows):
        return np.full(len(at), NOBODY, np.int64)
    indexes = np.searchsorted(sync_calls.begin, at, side="right") - 1
    inside = (indexes >= 0) & (sync_calls.end[indexes] >= at)
    return np.where(inside, indexes, NOBODY)


def _overhead(recording: TraceRecording, names: re.Pattern[str]) -> Flags:
    """Rows of the recorder's or the driver's own work."""
    is_named = recording.named(names.fullmatch)[recording.events.name]
    overhead: Flags = is_named & (recording.events.category == Category.OTHER)
    return overhead


def _overlaid(recording: TraceRecording, pieces: Gaps, rows: Ints, cause: int) -> Gaps:
    """The gaps cut at the borders of these rows; the parts inside get this cause."""
    events = recording.events
    rows = rows[np.argsort(events.begin[rows], kind="stable")]
    first, last = intervals.union(events.begin[rows], events.end[rows])
    if not len(first):
        return pieces
    borders = np.unique(np.r_[first, last])
    low = np.searchsorted(borders, pieces.begin, side="right")
    count = np.maximum(np.searchsorted(borders, pieces.end, side="left") - low, 0)
    piece = np.repeat(np.arange(len(pieces.begin)), count + 1)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
    at = low[piece] + number
    begin = np.where(number == 0, pieces.begin[piece], borders[np.maximum(at - 1, 0)])
    final = number == count[piece]
    end = np.where(final, pieces.end[piece], borders[np.minimum(at, len(borders) - 1)])
    intervals_at = np.searchsorted(first, begin, side="right") - 1
    inside = (intervals_at >= 0) & (begin < last[intervals_at])
    inside &= ~np.isin(pieces.cause[piece], ON_DEVICE)
    row = rows[np.maximum(np.searchsorted(events.begin[rows], begin, side="right") - 1, 0)]
    return Gaps(
        begin,
        end,
        np.where(inside, cause, pieces.cause[piece]),
        np.where(inside, row, pieces.doing[piece]),
    )


def launches_missing(recording: TraceRecording) -> bool:
    """Whether so much of the device's work is missing that its gaps say nothing."""
    events = recording.events
    is_launch = recording.named(operators.KERNEL_LAUNCH.fullmatch)[events.name]
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation > 0))
    launching = calls[is_launch[calls]]
    if len(launching) < LEAST_LAUNCHES:
        return False
    numbers = np.unique(events.correlation[calls])
    if float(np.median(np.diff(numbers))) > DISTANCE:
        return True
    with_work = np.isin(events.correlation[launching], events.correlation[recording.rows(*DEVICE)])
    return float(np.mean(~with_work)) > LOST
