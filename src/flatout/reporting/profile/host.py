"""The host's time for people: flame graph, tables of lines and threads, and their sums.

Milliseconds are those of an undisturbed step unless stated otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind, HostLine, HostStack, total_ms
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile
from flatout.reporting import plain
from flatout.reporting.profile import cells, words
from flatout.reporting.profile.cells import Cell, ReportRow, Table

LEAST_SHARE = 0.1
"""From this share of the step on, the terminal names lines of the host."""
LEAST_LINE = 0.01
"""Lines that take a smaller share of the step are not named there."""
LEAST_QUEUED = 0.02
"""From this share of a sampled step on, waiting for a core is reported."""
CHAIN = 3
"""The lines shown of a chain of calls, the innermost first."""
LINE_COLUMNS = (
    "Line",
    "Time",
    "Of the step",
    "Whose code",
    "Function",
    "Source",
    "Calls",
    "In",
    "Called from",
)
WORKER_COLUMNS = ("Line", "CPU time", "Whose code", "Function", "Source", "Calls")
OWN = (HostKind.PYTHON, HostKind.LIBRARY, HostKind.WAITING)
"""Kinds of cost of a user's line, apart from torch's operators."""

Json = dict[str, Any]


@dataclass(frozen=True)
class CostlyLine:
    """One of the user's lines with its whole cost on the host, except for torch's operators."""

    where: Place
    ms: float


def scale(profile: Profile) -> float:
    """The factor from the sampled steps to an undisturbed one."""
    return profile.host.scale(profile.anatomy.step_ms) if profile.host is not None else 1.0


@dataclass(frozen=True)
class HostSection:
    """The page's section on host time, apart from the flame graph."""

    sums: list[tuple[str, str, float]]
    remarks: list[str]
    lines: Table
    others: list[Table]
    """Loader workers and other threads, if there are any."""


def section(profile: Profile) -> HostSection:
    """The whole section, or an empty one if no stacks were sampled."""
    others = [table for table in (workers(profile), threads(profile)) if table.rows]
    return HostSection(sums(profile), list(remarks(profile)), lines(profile), others)


def flames(profile: Profile) -> Json | None:
    """Stacks of the training thread as a tree, times in milliseconds, with names of kinds.

    They may add up to slightly more than the step: the sampled steps are not the recorded ones.
    """
    stacks = [stack for stack in profile.host.stacks if not stack.thread] if profile.host else []
    if not profile.host or not stacks:
        return None
    factor = scale(profile)
    root = _node("step", "")
    for stack in stacks:
        _grow(root, stack, factor)
    if profile.host.gc_ms > 0:
        collecting = HostStack(("garbage collection",), profile.host.gc_ms)
        _grow(root, collecting, factor, str(Kind.COLLECTING))
    root["value"] = max(root["value"], profile.anatomy.step_ms)
    names = {str(kind): name for kind, name in cells.HOST_KINDS.items()}
    names[str(Kind.COLLECTING)] = words.kind(Kind.COLLECTING)
    shades = {str(kind): str(shade) for kind, shade in cells.SHADES.items()}
    ms = profile.anatomy.step_ms
    return {"ms": ms, "root": _finished(root), "names": names, "shades": shades}


def _node(name: str, kind: str) -> Json:
    return {"name": name, "kind": kind, "value": 0.0, "children": {}}


def _grow(root: Json, stack: HostStack, factor: float, kind: str = "") -> None:
    """Add one stack to the tree. kind: for frames without one of their own."""
    node = root
    node["value"] += factor * stack.ms
    kinds = list(map(str, stack.kinds)) or [kind] * len(stack.frames)
    for frame, kind_of in zip(stack.frames, kinds, strict=False):
        name = plain.one_line(frame)
        node = node["children"].setdefault((name, kind_of), _node(name, kind_of))
        node["value"] += factor * stack.ms


def _finished(node: Json) -> Json:
    """In the form that the drawing library takes: children in a list, the longest first."""
    children = sorted(node["children"].values(), key=lambda child: -child["value"])
    value = round(node["value"], 5)
    return {**node, "value": value, "children": [_finished(child) for child in children]}


def sums(profile: Profile) -> list[tuple[str, str, float]]:
    """Colour, name and milliseconds of each kind in the training thread, the longest first."""
    host = profile.host
    if host is None:
        return []
    factor = scale(profile)
    rows = [
        (str(cells.SHADES[kind]), name, factor * total_ms(host.of(kind)))
        for kind, name in cells.HOST_KINDS.items()
    ]
    loading = factor * total_ms(line for line in host.lines if line.loading)
    rows.append((str(Kind.WAIT_DATA), "making batches in this process", loading))
    collecting = factor * host.gc_ms
    rows.append((str(Kind.COLLECTING), words.kind(Kind.COLLECTING), collecting))
    return sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])


def remarks(profile: Profile) -> Iterator[str]:
    """How it was sampled, and whether other programs used the cores meanwhile."""
    host = profile.host
    if host is None:
        return
    yield (
        f"Sampled about a thousand times a second in {units.count(host.steps, 'step')} in which "
        "nothing else was recorded."
    )
    if profile.anatomy.device != "cpu":
        device = words.device(profile.anatomy)
        yield f"The host runs ahead of the {device}: it costs time only where the {device} waits."
    if (host.queued_ms or 0.0) >= LEAST_QUEUED * host.step_ms:
        yield (
            f"For {units.milliseconds(host.queued_ms)} of a sampled step the training thread was"
            " ready to run but had no core: other programs, or other threads of this one, used"
            " them. No line includes that time."
        )
    if not host.idle_known:
        yield "This system cannot tell waiting from running: the lines include waiting."


def lines(profile: Profile) -> Table:
    """The user's costliest lines on the host, with what they call."""
    step_ms, factor = profile.anatomy.step_ms, scale(profile)
    host_lines = profile.host.lines if profile.host is not None else ()
    rows = []
    for line in host_lines:
        ms = factor * line.ms
        chain = " < ".join(str(place) for place in line.chain[: -CHAIN - 1 : -1])
        part = "model" if line.modelling else ""  # of a training program, or the loop itself
        if line.loading:
            part = "loader"
        elif line.updating:
            part = "optimizer"
        row_cells = (
            cells.where(line.where),
            cells.milliseconds(ms),
            cells.share(ms, step_ms),
            _whose(line),
            Cell(plain.one_line(line.where.function), style="where"),
            cells.code(line.where.source),
            cells.code("" if line.callee == line.where.source else line.callee),
            Cell(part),
            Cell(plain.one_line(chain), style="short"),
        )
        rows.append(ReportRow(row_cells, ms, line.kind))
    return cells.many("host-lines", "Lines of the host", LINE_COLUMNS, rows)


def _whose(line: HostLine) -> Cell:
    return cells.host_kind(line.kind, line.package if line.kind is HostKind.LIBRARY else "")


def workers(profile: Profile) -> Table:
    """Lines of the loader's workers, the costliest first; CPU time summed over the workers."""
    host = profile.host
    rows = []
    for line in host.worker_lines if host is not None else ():
        row_cells = (
            cells.where(line.where),
            cells.milliseconds(line.ms),
            _whose(line),
            Cell(plain.one_line(line.where.function), style="where"),
            cells.code(line.where.source),
            cells.code("" if line.callee == line.where.source else line.callee),
        )
        rows.append(ReportRow(row_cells))
    note = "CPU time of all workers together, for one step."
    if host is not None and host.worker_idle_ms:
        idle = units.milliseconds(host.worker_idle_ms)
        note += f" While they prepared samples they waited for {idle}: for storage, locks, sleep."
    return cells.few(Table("host-workers", "Loader workers", note, WORKER_COLUMNS, tuple(rows)))


def threads(profile: Profile) -> Table:
    """Other threads of the process, the busiest first."""
    others = profile.host.threads if profile.host is not None else ()
    rows = []
    for thread in others:
        source = thread.where.source if thread.where is not None else ""
        where = cells.where(thread.where)
        if thread.where is None:
            where = Cell(plain.one_line(thread.package), style="where")
        name = Cell(plain.one_line(thread.name), style="short")
        time = cells.milliseconds(thread.cpu_ms)
        rows.append(ReportRow((name, time, where, cells.code(source))))
    note = "They share the interpreter and the cores with the thread that trains."
    columns = ("Thread", "CPU time a step", "Line or package", "Source")
    return cells.few(Table("host-threads", "Other threads", note, columns, tuple(rows)))


def costliest(profile: Profile, at_most: int) -> list[CostlyLine]:
    """The user's lines that cost the host most, if they take a tenth of the step in all.

    On an accelerator: if it waits for the host that long.
    """
    anatomy, host = profile.anatomy, profile.host
    on_cpu = Kind.USER, Kind.LIBRARY, Kind.BLOCKED
    own = on_cpu if anatomy.device == "cpu" else (Kind.WAIT_HOST,)
    if host is None or anatomy.share(*own) < LEAST_SHARE:
        return []
    factor = scale(profile)
    by_line: dict[tuple[str, str], list[HostLine]] = defaultdict(list)
    for line in host.of(*OWN):
        by_line[str(line.where), line.where.function].append(line)
    costly = [
        CostlyLine(max(group, key=lambda line: line.ms).where, factor * total_ms(group))
        for group in by_line.values()
    ]
    least_ms = LEAST_LINE * anatomy.step_ms
    large = [line for line in costly if line.ms >= least_ms]
    return sorted(large, key=lambda line: -line.ms)[:at_most]
