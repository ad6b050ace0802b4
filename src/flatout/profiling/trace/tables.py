"""What was seen in the window, summed up by name and place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.profile import Collective, Copy, Gap, Kernel, Operator, Sync
from flatout.profiling.trace import device, intervals, kinds, operators, processor
from flatout.profiling.trace.device import RANKS
from flatout.profiling.trace.groups import Groups, grouped
from flatout.profiling.trace.intervals import NOBODY
from flatout.profiling.trace.recording import Category, Flags, Ints
from flatout.profiling.trace.seen import Seen

MOST = 2000
"""Lines of one table."""
MOST_SHAPES = 8


def operator_table(seen: Seen, factor: Mapping[Kind, float]) -> tuple[Operator, ...]:
    """Operators by name, place and direction."""
    recording, rows = seen.recording, seen.rows
    events = recording.events
    backward = seen.source.backward.astype(np.int64)
    groups = grouped(events.name[rows], seen.source.where[rows], backward[rows], seen.rank[rows])
    launched = np.zeros(len(events))
    mine = (seen.work.operator >= 0) & seen.counted
    lasting = (events.end - events.begin)[seen.work.rows[mine]]
    np.add.at(launched, seen.work.operator[mine], lasting)
    host_ns, device_ns = groups.total(seen.host.own[rows]), groups.total(launched[rows])
    calls, flops = groups.count(), groups.total(seen.flops[rows])
    by_group = _launching(seen, groups, mine, rows)
    kind = _operator_kinds(seen, groups, mine, by_group)
    shapes = _distinct(seen, groups, rows, launched, "shapes")
    dtypes = {
        **_float32_by_kernels(seen, mine, by_group),
        **_distinct(seen, groups, rows, launched, "dtypes"),
    }
    found = []
    for number in np.argsort(-(host_ns + device_ns), kind="stable")[:MOST].tolist():
        name, where, behind, _ = groups.keys[:, number].tolist()
        share = 1.0 if seen.on_device else factor.get(kind[number], 1.0)
        found.append(
            Operator(
                name=recording.names[name],
                kind=kind[number],
                calls=seen.mean(calls[number]),
                host_ms=seen.per_step(host_ns[number]) * share,
                device_ms=seen.per_step(device_ns[number]),
                shapes=shapes.get(number, ()),
                dtypes=dtypes.get(number, ()),
                where=seen.source.places.known[where] if where >= 0 else None,
                backward=bool(behind),
                flops=seen.mean(flops[number]) or None,
            )
        )
    return tuple(found)


def _operator_kinds(seen: Seen, groups: Groups, mine: Flags, which: Ints) -> list[Kind]:
    """Of each group: of the kernels that it launched most time of, else of its name.

    `which`: as `_launching` tells.
    """
    by_name = [processor.ORDER[rank] for rank in groups.keys[3].tolist()]
    if not seen.on_device:
        return by_name
    events, work = seen.recording.events, seen.work
    lasting = (events.end - events.begin)[work.rows[mine]]
    busy = np.zeros((len(groups), len(device.ORDER)))
    np.add.at(busy, (which[which >= 0], work.rank[mine][which >= 0]), lasting[which >= 0])
    best = busy.argmax(axis=1)
    return [
        device.ORDER[best[number]] if busy[number].any() else by_name[number]
        for number in range(len(groups))
    ]


def _launching(seen: Seen, groups: Groups, mine: Flags, rows: Ints) -> Ints:
    """Of each of the device's works the group that launched it; NOBODY: none of these."""
    group = np.full(len(seen.recording.events), NOBODY, np.int64)
    group[rows] = groups.group
    found: Ints = group[seen.work.operator[mine]]
    return found


def _float32_by_kernels(seen: Seen, mine: Flags, which: Ints) -> dict[int, tuple[str, ...]]:
    """Groups that launched kernels whose names say float32, for traces without dtypes."""
    named = seen.recording.named(kinds.float32)
    launched = which[named[seen.recording.events.name[seen.work.rows[mine]]]]
    return dict.fromkeys(np.unique(launched[launched >= 0]).tolist(), ("float",))


def _distinct(
    seen: Seen, groups: Groups, rows: Ints, launched: NDArray[np.float64], column: str
) -> dict[int, tuple[str, ...]]:
    """The distinct texts of a column in each group, the costliest first."""
    detail, twin = seen.source.recording, seen.source.twin[rows]
    texts = getattr(detail, column)
    number = np.where(twin >= 0, getattr(detail.events, column)[twin], NOBODY)
    kept = number >= 0
    pairs = grouped(groups.group[kept], number[kept])
    cost = pairs.total((seen.host.own[rows] + launched[rows])[kept])
    found: dict[int, tuple[str, ...]] = {}
    for pair in np.lexsort((-cost, pairs.keys[0])).tolist():
        group, text = pairs.keys[:, pair].tolist()
        known = found.get(group, ())
        shown = _dtypes(texts[text]) if column == "dtypes" else _sizes(texts[text])
        found[group] = (*known, *(one for one in shown if one not in known))[:MOST_SHAPES]
    return found


def _sizes(text: str) -> tuple[str, ...]:
    """Of the inputs that are tensors; none where there is none."""
    found = ", ".join(one for one in text.split(", ") if one)
    return (found,) if found else ()


def _dtypes(text: str) -> tuple[str, ...]:
    """Of the tensors among the inputs."""
    skipped = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "None")
    return tuple(dict.fromkeys(one for one in text.split(", ") if one not in skipped))


def kernel_table(seen: Seen) -> tuple[Kernel, ...]:
    """Kernels by name, operator and place."""
    recording, work = seen.recording, seen.work
    events = recording.events
    kept = seen.counted & (events.category[work.rows] == Category.KERNEL)
    rows, operator = work.rows[kept], work.operator[kept]
    launcher = np.where(operator >= 0, events.name[operator], NOBODY)
    where = np.where(operator >= 0, seen.source.where[operator], NOBODY)
    groups = grouped(events.name[rows], work.rank[kept], launcher, where)
    lasting = events.end[rows] - events.begin[rows]
    ns, calls = groups.total(lasting), groups.count()
    known = events.occupancy[rows] >= 0
    weight = groups.total(lasting * known)
    occupied = groups.total(lasting * known * events.occupancy[rows])
    found = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        name, rank, by, at = groups.keys[:, number].tolist()
        share = float(occupied[number] / weight[number]) / 100 if weight[number] else None
        found.append(
            Kernel(
                name=recording.names[name],
                kind=device.ORDER[rank],
                calls=seen.mean(calls[number]),
                ms=seen.per_step(ns[number]),
                operator=recording.names[by] if by >= 0 else "",
                where=seen.source.places.known[at] if at >= 0 else None,
                tensor_cores=kinds.tensor_cores(recording.names[name]),
                occupancy=share,
            )
        )
    return tuple(found)


def gap_table(seen: Seen, factor: Mapping[Kind, float]) -> tuple[Gap, ...]:
    """Idle time by cause, what the host did, and place."""
    recording, gaps = seen.recording, seen.gaps
    owner = owners(seen, gaps.doing)
    name = np.where(owner >= 0, recording.events.name[owner], NOBODY)
    where = np.where(owner >= 0, seen.source.where[owner], NOBODY)
    groups = grouped(gaps.cause, name, where)
    ns, count = groups.total(gaps.end - gaps.begin), groups.count()
    found = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        cause, doing, at = groups.keys[:, number].tolist()
        kind = WAITS[cause]
        found.append(
            Gap(
                kind=kind,
                ms=seen.per_step(ns[number]) * factor.get(kind, 1.0),
                count=seen.mean(count[number]),
                doing=recording.names[doing] if doing >= 0 else "",
                where=seen.source.places.known[at] if at >= 0 else None,
            )
        )
    return tuple(found)


def owners(seen: Seen, rows: Ints) -> Ints:
    """For each row who is to be named for it.

    For a call of the runtime: the operator that needs a result of the device, where there is
    one around it (aten::item), else the outermost operator; for others: the row itself.
    """
    events, parent = seen.recording.events, seen.host.parent
    telling = seen.recording.named(operators.SYNC_OPERATORS.__contains__)
    found = rows.copy()
    calls = (rows >= 0) & (events.category[rows] == Category.RUNTIME)
    outermost, named = np.full_like(rows, NOBODY), np.full_like(rows, NOBODY)
    around = np.where(calls, parent[rows], NOBODY)
    while (inside := (around >= 0) & (events.category[around] == Category.OPERATOR)).any():
        passed = inside & ~seen.recording.named(_is_frame)[events.name[around]]
        outermost = np.where(passed, around, outermost)
        named = np.where(passed & telling[events.name[around]], around, named)
        around = np.where(inside, parent[around], NOBODY)
    found = np.where(calls & (outermost >= 0), outermost, found)
    return np.where(calls & (named >= 0), named, found)


def _is_frame(name: str) -> bool:
    """Of autograd: it holds operators, and is none."""
    return "::" not in name or name.startswith(operators.BACKWARD)


def sync_table(seen: Seen) -> tuple[Sync, ...]:
    """Calls in which the host waited for the device."""
    events, waiting = seen.recording.events, seen.syncs
    rows = waiting.rows[seen.window.inside(waiting.begin)]
    owner = owners(seen, rows)
    groups = grouped(events.name[owner], seen.source.where[owner])
    ns = groups.total(events.end[rows] - events.begin[rows])
    calls = grouped(groups.group, owner)
    count = np.bincount(calls.keys[0], minlength=len(groups))
    dry = np.zeros(len(events))
    mine = seen.gaps.cause == WAITS.index(Kind.WAIT_SYNC)
    mine &= seen.gaps.doing >= 0
    np.add.at(dry, seen.gaps.doing[mine], (seen.gaps.end - seen.gaps.begin)[mine])
    idle = groups.total(dry[rows])
    found = []
    for number in np.argsort(-(ns + idle), kind="stable")[:MOST].tolist():
        name, at = groups.keys[:, number].tolist()
        found.append(
            Sync(
                name=seen.recording.names[name],
                calls=seen.mean(count[number]),
                ms=seen.per_step(ns[number]),
                idle_ms=seen.per_step(idle[number]),
                where=seen.source.places.known[at] if at >= 0 else None,
            )
        )
    return tuple(found)


def copy_table(seen: Seen) -> tuple[Copy, ...]:
    """Copies by direction, kind of memory and place."""
    recording, work = seen.recording, seen.work
    events = recording.events
    kept = seen.counted & (events.category[work.rows] == Category.MEMCPY)
    rows, operator, call = work.rows[kept], work.operator[kept], work.call[kept]
    where = np.where(operator >= 0, seen.source.where[operator], NOBODY)
    groups = grouped(events.name[rows], where)
    size = np.where(events.moved[rows] >= 0, events.moved[rows], np.maximum(events.moved[call], 0))
    ns, moved, calls = (
        groups.total(values)
        for values in (events.end[rows] - events.begin[rows], size, size * 0 + 1)
    )
    exposed = groups.total(_exposed(seen, rows, RANKS[Kind.COPY]))
    found = []
    for number in np.argsort(-ns, kind="stable")[:MOST].tolist():
        name, at = groups.keys[:, number].tolist()
        found.append(
            Copy(
                direction=kinds.direction(recording.names[name]),
                calls=seen.mean(calls[number]),
                bytes=seen.mean(moved[number]),
                ms=seen.per_step(ns[number]),
                pinned=kinds.pinned(recording.names[name]),
                exposed_ms=seen.per_step(exposed[number]),
                where=seen.source.places.known[at] if at >= 0 else None,
            )
        )
    return tuple(found)


def _exposed(seen: Seen, rows: Ints, rank: int) -> Ints:
    """How much of each row's time its kind holds."""
    mine, events = seen.held.of(rank), seen.recording.events
    return intervals.covered(mine.begin, mine.end, events.begin[rows], events.end[rows])


def collective_table(seen: Seen) -> tuple[Collective, ...]:
    """Communication by what it does."""
    names = seen.recording.names
    if seen.on_device:
        rank = RANKS[Kind.COMMUNICATION]
        kept = seen.counted & (seen.work.rank == rank)
        rows, called = seen.work.rows[kept], seen.work.operator[kept]
        said = [_said(seen, row, by) for row, by in zip(rows, called, strict=True)]
        sent = _sent(seen, called)
    else:
        rank = processor.RANKS[Kind.COMMUNICATION]
        mine = seen.rows[seen.rank[seen.rows] == rank]
        around = seen.host.parent[mine]
        rows = mine[(around < 0) | (seen.rank[around] != rank)]
        sent = _sent_within(seen, rows, mine)
        said = [kinds.collective(names[seen.recording.events.name[row]]) for row in rows.tolist()]
    events = seen.recording.events
    exposed = _exposed(seen, rows, rank)
    found = []
    for word in sorted(set(said)):
        mine = np.array([one == word for one in said])
        lasting = (events.end - events.begin)[rows[mine]]
        found.append(
            Collective(
                name=word,
                calls=seen.mean(mine.sum()),
                ms=seen.per_step(lasting.sum()),
                exposed_ms=seen.per_step(exposed[mine].sum()),
                bytes=seen.mean(sent[mine].sum()) or None,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.ms))


def _sent(seen: Seen, called: Ints) -> Ints:
    """Bytes that the callers of kernels hand over; of several kernels of one the first counts."""
    moved, told, found = seen.recording.events.moved, set(), []
    for operator in called.tolist():
        while operator >= 0 and moved[operator] < 0:
            operator = int(seen.host.parent[operator])
        found.append(int(moved[operator]) if operator >= 0 and operator not in told else 0)
        told.add(operator)
    return np.array(found, np.int64)


def _sent_within(seen: Seen, rows: Ints, mine: Ints) -> Ints:
    """Bytes told by the operators `mine`, each inside of one of `rows` or one itself."""
    found, moved = np.zeros(len(seen.recording.events), np.int64), seen.recording.events.moved
    outermost = set(rows.tolist())
    for row in mine[moved[mine] >= 0].tolist():
        around = row
        while around >= 0 and around not in outermost:
            around = int(seen.host.parent[around])
        found[around] += moved[row] if around >= 0 else 0
    sent: Ints = found[rows]
    return sent


def _said(seen: Seen, row: int, operator: int) -> str:
    """The collective, as who launched the kernel calls it, else as its own name does."""
    names, events = seen.recording.names, seen.recording.events
    while operator >= 0:
        word = kinds.collective(names[events.name[operator]])
        if word != "other":
            return word
        operator = int(seen.host.parent[operator])
    return kinds.collective(names[events.name[row]])
