"""Communication between ranks: calls, time, bytes, and the bus bandwidth that was reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatout.nouns import bus
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Collective
from flatout.profiling.trace import kinds, processor, widths
from flatout.profiling.trace.attribution import Attribution
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.recording import Flags, Ints

LARGE = 2**20
"""Bytes of a message whose time is that of the link rather than its latency."""
CARRIED = re.compile(r"(gloo|mpi|ucc|nccl):")
"""A backend's own record of a collective, on the thread that carries it out."""
UNKNOWN = -1


@dataclass(frozen=True)
class _Messages:
    """All collectives in the window. The arrays are as long as `rows`."""

    rows: Ints
    """In order of begin."""
    rank: int
    """Rank of communication among the owners of time."""
    names: Sequence[str]
    sizes: Ints
    """Bytes; UNKNOWN if not recorded or counted with another row."""
    members: Ints
    """Ranks of the group; UNKNOWN if not recorded."""
    is_call: Flags
    """False for rows that only hand the collective to the thread that carries it out."""


def table(attribution: Attribution) -> tuple[Collective, ...]:
    """Communication by collective, the longest first."""
    messages = _on_device(attribution) if attribution.on_device else _on_host(attribution)
    events, rows = attribution.recording.events, messages.rows
    begin, end = events.begin[rows], events.end[rows]
    earlier = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end]))[:-1]
    begin = np.minimum(np.maximum(begin, earlier), end)  # of simultaneous rows the first counts
    busy, exposed = end - begin, attribution.exposed_between(begin, end, messages.rank)
    entries = []
    for name in sorted(set(messages.names)):
        is_named = np.array([collective == name for collective in messages.names])
        sizes, members = messages.sizes[is_named], messages.members[is_named]
        # Bus bandwidth (GB/s) of the fastest large message, which waited least for other ranks.
        numbers = np.flatnonzero(is_named)
        reached: list[float] = []
        for number in numbers[messages.sizes[numbers] >= LARGE].tolist():
            ns = int(events.end[rows[number]] - events.begin[rows[number]])
            size, ranks = float(messages.sizes[number]), int(messages.members[number])
            value = bus.gb_per_s(messages.names[number], ranks, size, ns / 1e9)
            reached += [] if value is None else [value]
        entries.append(
            Collective(
                name=name,
                calls=attribution.mean((is_named & messages.is_call).sum()),
                ms=attribution.per_step(busy[is_named].sum()),
                exposed_ms=attribution.per_step(exposed[is_named].sum()),
                bytes=attribution.mean(sizes[sizes > 0].sum()) or None,
                ranks=int(members.max()) if len(members) and members.max() > 0 else None,
                bus_gb_per_s=max(reached, default=None),
            )
        )
    return tuple(sorted(entries, key=lambda collective: -collective.ms))


def _on_device(attribution: Attribution) -> _Messages:
    """Kernels of communication."""
    rank = RANKS[Kind.COMMUNICATION]
    is_counted = attribution.counted & (attribution.work.rank == rank)
    rows, callers = attribution.work.rows[is_counted], attribution.work.operator[is_counted]
    names = [
        _kind(attribution, *pair) for pair in zip(rows.tolist(), callers.tolist(), strict=True)
    ]
    # Bytes and ranks that the callers of kernels recorded. The bytes of a caller of several
    # kernels count once.
    events, counted = attribution.recording.events, set()
    sizes: list[int] = []
    members: list[int] = []
    for operator in callers.tolist():
        while operator >= 0 and events.moved[operator] < 0:
            operator = int(attribution.host.parent[operator])
        is_new = operator >= 0 and operator not in counted
        sizes.append(int(events.moved[operator]) if is_new else UNKNOWN)
        members.append(int(events.members[operator]) if operator >= 0 else UNKNOWN)
        counted.add(operator)
    return _Messages(
        rows,
        rank,
        names,
        np.array(sizes, np.int64),
        np.array(members, np.int64),
        np.ones(len(rows), np.bool_),
    )


def _on_host(attribution: Attribution) -> _Messages:
    """Operators of communication; a backend's own record replaces the call that requested it."""
    rank, recording = processor.RANKS[Kind.COMMUNICATION], attribution.recording
    inner = attribution.rows[attribution.rank[attribution.rows] == rank]
    parents = attribution.host.parent[inner]
    rows = inner[(parents < 0) | (attribution.rank[parents] != rank)]
    titles = [recording.names[number] for number in recording.events.name[rows].tolist()]
    names = [kinds.collective(title) for title in titles]
    is_carried = np.array([bool(CARRIED.match(title)) for title in titles], np.bool_)
    carried = {name for name, is_own in zip(names, is_carried, strict=True) if is_own}
    is_call = is_carried | np.array([name not in carried for name in names], np.bool_)
    # Bytes recorded with the operators `inner`, each of them in `rows` or inside one of `rows`.
    # If none are recorded, the bytes follow from the shapes of a row's inputs.
    events = attribution.recording.events
    totals = np.full(len(events), UNKNOWN, np.int64)
    outermost = set(rows.tolist())
    for row in inner[events.moved[inner] >= 0].tolist():
        ancestor = row
        while ancestor >= 0 and ancestor not in outermost:
            ancestor = int(attribution.host.parent[ancestor])
        totals[ancestor] = max(totals[ancestor], 0) + events.moved[row]
    by_shapes = [_of_shapes(attribution, row) for row in rows.tolist()]
    sizes = np.where(is_call, np.where(totals[rows] >= 0, totals[rows], by_shapes), UNKNOWN)
    distributed = recording.metadata.get("distributedInfo")
    world = distributed.get("world_size") if isinstance(distributed, dict) else None
    is_known = isinstance(world, int) and world > 0
    members = np.full(len(rows), world if is_known else UNKNOWN)
    return _Messages(rows, rank, names, sizes, members, is_call)


def _of_shapes(attribution: Attribution, row: int) -> int:
    """Bytes of one row's inputs, from its shapes; UNKNOWN if not recorded."""
    source = attribution.source
    twin = int(source.twin[row])
    events = source.recording.events
    if twin < 0 or events.shapes[twin] < 0:
        return UNKNOWN
    shapes = source.recording.shapes[events.shapes[twin]].split(", ")
    number = int(events.dtypes[twin])
    dtypes = source.recording.dtypes[number].split(", ") if number >= 0 else []
    width = (widths.width(dtypes[0]) if dtypes else None) or widths.USUAL
    counts = [np.prod([int(size) for size in shape.split("x")]) for shape in shapes if shape]
    return int(sum(counts)) * width if counts else UNKNOWN


def _kind(attribution: Attribution, row: int, operator: int) -> str:
    """The collective by the name of the kernel's launcher, else by the kernel's own name."""
    names, events = attribution.recording.names, attribution.recording.events
    while operator >= 0:
        word = kinds.collective(names[events.name[operator]])
        if word != "other":
            return word
        operator = int(attribution.host.parent[operator])
    return kinds.collective(names[events.name[row]])
