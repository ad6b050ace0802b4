"""What was recorded in the window, summed by name and place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import Copy, Gap, Kernel, Operator, Sync
from flatout.profiling.trace import device, kinds, operators, processor
from flatout.profiling.trace.attribution import Attribution
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.groups import Groups, grouped
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Category, Flags, Ints

MOST = 2000
"""Lines of one table."""
MOST_SHAPES = 8


def operator_table(attribution: Attribution, factor: Mapping[Kind, float]) -> tuple[Operator, ...]:
    """Operators by name, place and direction."""
    recording, rows = attribution.recording, attribution.rows
    events = recording.events
    backward = attribution.source.backward.astype(np.int64)
    groups = grouped(
        events.name[rows], attribution.source.where[rows], backward[rows], attribution.rank[rows]
    )
    launched_ns = np.zeros(len(events))
    is_counted = (attribution.work.operator >= 0) & attribution.counted
    durations = (events.end - events.begin)[attribution.work.rows[is_counted]]
    np.add.at(launched_ns, attribution.work.operator[is_counted], durations)
    host_ns, device_ns = groups.total(attribution.host.own[rows]), groups.total(launched_ns[rows])
    calls, flops = groups.count(), groups.total(attribution.flops[rows])
    group = np.full(len(events), NOBODY, np.int64)
    group[rows] = groups.group
    by_group = group[attribution.work.operator[is_counted]]  # the group that launched each work
    kind = _operator_kinds(attribution, groups, is_counted, by_group)
    shapes = _distinct(attribution, groups, rows, launched_ns, "shapes")
    # Groups that launched kernels with float32 names, for traces without dtypes.
    is_float32 = attribution.recording.named(kinds.float32)
    float32_groups = by_group[
        is_float32[attribution.recording.events.name[attribution.work.rows[is_counted]]]
    ]
    dtypes = {
        **dict.fromkeys(np.unique(float32_groups[float32_groups >= 0]).tolist(), ("float",)),
        **_distinct(attribution, groups, rows, launched_ns, "dtypes"),
    }
    table = []
    for number in np.argsort(-(host_ns + device_ns), kind="stable")[:MOST].tolist():
        name, where, is_backward, _ = groups.keys[:, number].tolist()
        correction = 1.0 if attribution.on_device else factor.get(kind[number], 1.0)
        table.append(
            Operator(
                name=recording.names[name],
                kind=kind[number],
                calls=attribution.mean(calls[number]),
                host_ms=attribution.per_step(host_ns[number]) * correction,
                device_ms=attribution.per_step(device_ns[number]),
                shapes=shapes.get(number, ()),
                dtypes=dtypes.get(number, ()),
                where=attribution.source.places.entries[where] if where >= 0 else None,
                backward=bool(is_backward),
                flops=attribution.mean(flops[number]) or None,
            )
        )
    return tuple(table)


def _operator_kinds(
    attribution: Attribution, groups: Groups, is_counted: Flags, group_numbers: Ints
) -> list[Kind]:
    """The kind of each group: that of its longest kernels, else by its name.

    `group_numbers`: for each piece of device work the group that launched it, or NOBODY.
    """
    by_name = [processor.ORDER[rank] for rank in groups.keys[3].tolist()]
    if not attribution.on_device:
        return by_name
    events, work = attribution.recording.events, attribution.work
    durations = (events.end - events.begin)[work.rows[is_counted]]
    busy = np.zeros((len(groups), len(device.ORDER)))
    np.add.at(
        busy,
        (group_numbers[group_numbers >= 0], work.rank[is_counted][group_numbers >= 0]),
        durations[group_numbers >= 0],
    )
    best = busy.argmax(axis=1)
    return [
        device.ORDER[best[number]] if busy[number].any() else by_name[number]
        for number in range(len(groups))
    ]


def _distinct(
    attribution: Attribution,
    groups: Groups,
    rows: Ints,
    launched_ns: NDArray[np.float64],
    column: str,
) -> dict[int, tuple[str, ...]]:
    """The distinct texts of a column in each group, the costliest first."""
    detail, twin = attribution.source.recording, attribution.source.twin[rows]
    texts = getattr(detail, column)
    number = np.where(twin >= 0, getattr(detail.events, column)[twin], NOBODY)
    has_text = number >= 0
    pairs = grouped(groups.group[has_text], number[has_text])
    cost = pairs.total((attribution.host.own[rows] + launched_ns[rows])[has_text])
    texts_by_group: dict[int, tuple[str, ...]] = {}
    for pair in np.lexsort((-cost, pairs.keys[0])).tolist():
        group, text = pairs.keys[:, pair].tolist()
        earlier = texts_by_group.get(group, ())
        display = _dtypes(texts[text]) if column == "dtypes" else _sizes(texts[text])
        texts_by_group[group] = (*earlier, *(entry for entry in display if entry not in earlier))[
            :MOST_SHAPES
        ]
    return texts_by_group


def _sizes(text: str) -> tuple[str, ...]:
    """Shapes of the inputs that are tensors; empty if none is."""
    sizes = ", ".join(size for size in text.split(", ") if size)
    return (sizes,) if sizes else ()


def _dtypes(text: str) -> tuple[str, ...]:
    """Dtypes of the tensors among the inputs."""
    skipped = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "None")
    return tuple(dict.fromkeys(dtype for dtype in text.split(", ") if dtype not in skipped))


def kernel_table(attribution: Attribution) -> tuple[Kernel, ...]:
    """Kernels by name, operator and place."""
    recording, work = attribution.recording, attribution.work
    events = recording.events
    is_counted = attribution.counted & (events.category[work.rows] == Category.KERNEL)
    rows, operator = work.rows[is_counted], work.operator[is_counted]
    launcher = np.where(operator >= 0, events.name[operator], NOBODY)
    where = np.where(operator >= 0, attribution.source.where[operator], NOBODY)
    groups = grouped(events.name[rows], work.rank[is_counted], launcher, where)
    durations = events.end[rows] - events.begin[rows]
    ns, calls = groups.total(durations), groups.count()
    has_occupancy = events.occupancy[rows] >= 0
    weight = groups.total(durations * has_occupancy)
    occupancy = groups.total(durations * has_occupancy * events.occupancy[rows])
    table = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        name, rank, launching_name, place = groups.keys[:, number].tolist()
        share = float(occupancy[number] / weight[number]) / 100 if weight[number] else None
        table.append(
            Kernel(
                name=recording.names[name],
                kind=device.ORDER[rank],
                calls=attribution.mean(calls[number]),
                ms=attribution.per_step(ns[number]),
                operator=recording.names[launching_name] if launching_name >= 0 else "",
                where=attribution.source.places.entries[place] if place >= 0 else None,
                tensor_cores=kinds.tensor_cores(recording.names[name]),
                occupancy=share,
            )
        )
    return tuple(table)


def gap_table(attribution: Attribution, factor: Mapping[Kind, float]) -> tuple[Gap, ...]:
    """Idle time by cause, what the host did, and place."""
    recording, gaps = attribution.recording, attribution.gaps
    owner = owners(attribution, gaps.doing)
    name = np.where(owner >= 0, recording.events.name[owner], NOBODY)
    where = np.where(owner >= 0, attribution.source.where[owner], NOBODY)
    groups = grouped(gaps.cause, name, where)
    durations = gaps.end - gaps.begin
    ns, count = groups.total(durations), groups.count()
    table = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        cause, doing, place = groups.keys[:, number].tolist()
        kind = WAITS[cause]
        table.append(
            Gap(
                kind=kind,
                ms=attribution.per_step(ns[number]) * factor.get(kind, 1.0),
                count=attribution.mean(count[number]),
                doing=recording.names[doing] if doing >= 0 else "",
                where=attribution.source.places.entries[place] if place >= 0 else None,
            )
        )
    return tuple(table)


def owners(attribution: Attribution, rows: Ints) -> Ints:
    """For each row the row whose name is reported.

    For a runtime call: the enclosing operator that needs a result from the device (aten::item), if
    any, else the outermost operator. For others: the row itself.
    """
    events, parent = attribution.recording.events, attribution.host.parent
    needs_result = attribution.recording.named(operators.SYNC_OPERATORS.__contains__)
    named_rows = rows.copy()
    calls = (rows >= 0) & (events.category[rows] == Category.RUNTIME)
    outermost, sync_operators = np.full_like(rows, NOBODY), np.full_like(rows, NOBODY)
    ancestors = np.where(calls, parent[rows], NOBODY)
    while (inside := (ancestors >= 0) & (events.category[ancestors] == Category.OPERATOR)).any():
        is_operator = inside & ~attribution.recording.named(_is_frame)[events.name[ancestors]]
        outermost = np.where(is_operator, ancestors, outermost)
        sync_operators = np.where(
            is_operator & needs_result[events.name[ancestors]], ancestors, sync_operators
        )
        ancestors = np.where(inside, parent[ancestors], NOBODY)
    named_rows = np.where(calls & (outermost >= 0), outermost, named_rows)
    return np.where(calls & (sync_operators >= 0), sync_operators, named_rows)


def _is_frame(name: str) -> bool:
    """Whether it is a frame of autograd, which contains operators but is not one."""
    return "::" not in name or name.startswith(operators.BACKWARD)


def sync_table(attribution: Attribution) -> tuple[Sync, ...]:
    """Calls in which the host waited for the device."""
    events, syncs = attribution.recording.events, attribution.syncs
    rows = syncs.rows[attribution.window.inside(syncs.begin)]
    owner = owners(attribution, rows)
    groups = grouped(events.name[owner], attribution.source.where[owner])
    ns = groups.total(events.end[rows] - events.begin[rows])
    calls = grouped(groups.group, owner)
    count = np.bincount(calls.keys[0], minlength=len(groups))
    idle_ns = np.zeros(len(events))
    is_sync_gap = attribution.gaps.cause == WAITS.index(Kind.WAIT_SYNC)
    is_sync_gap &= attribution.gaps.doing >= 0
    np.add.at(
        idle_ns,
        attribution.gaps.doing[is_sync_gap],
        (attribution.gaps.end - attribution.gaps.begin)[is_sync_gap],
    )
    idle = groups.total(idle_ns[rows])
    table = []
    for number in np.argsort(-(ns + idle), kind="stable")[:MOST].tolist():
        name, place = groups.keys[:, number].tolist()
        table.append(
            Sync(
                name=attribution.recording.names[name],
                calls=attribution.mean(count[number]),
                ms=attribution.per_step(ns[number]),
                idle_ms=attribution.per_step(idle[number]),
                where=attribution.source.places.entries[place] if place >= 0 else None,
            )
        )
    return tuple(table)


def copy_table(attribution: Attribution) -> tuple[Copy, ...]:
    """Copies by direction, kind of memory and place."""
    recording, work = attribution.recording, attribution.work
    events = recording.events
    is_counted = attribution.counted & (events.category[work.rows] == Category.MEMCPY)
    rows, operator, call = work.rows[is_counted], work.operator[is_counted], work.call[is_counted]
    where = np.where(operator >= 0, attribution.source.where[operator], NOBODY)
    groups = grouped(events.name[rows], where)
    size = np.where(events.moved[rows] >= 0, events.moved[rows], np.maximum(events.moved[call], 0))
    ns, moved, calls = (
        groups.total(values)
        for values in (events.end[rows] - events.begin[rows], size, size * 0 + 1)
    )
    exposed = groups.total(attribution.exposed(rows, RANKS[Kind.COPY]))
    table = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        name, place = groups.keys[:, number].tolist()
        table.append(
            Copy(
                direction=kinds.direction(recording.names[name]),
                calls=attribution.mean(calls[number]),
                bytes=attribution.mean(moved[number]),
                ms=attribution.per_step(ns[number]),
                pinned=kinds.pinned(recording.names[name]),
                exposed_ms=attribution.per_step(exposed[number]),
                where=attribution.source.places.entries[place] if place >= 0 else None,
            )
        )
    return tuple(table)
