"""The user's work beside the training, found by the data flow of its lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from flatout.diagnosing.job import flow, host_lines, operators, savings
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns.host_time import HostLine
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile
from flatout_agent.wire import BesideSeen, FlowSeen

ACCUMULATED = "accumulated"
"""BesideSeen.source of gradients that are cloned to be summed."""
CERTAIN = 0.5
"""Share of the work's time that must be in lines known from the flow to be beside training."""
DOUBTED = 0.1
"""Share that may be in lines whose values the training may use."""
WORD = re.compile(r"[A-Za-z_]\w*")
Function = tuple[str, str]
"""A file and a function in it."""


class _Place(NamedTuple):
    """The function that holds a piece of work."""

    function: Function
    whole: bool
    """Whether all of the function's lines belong to it."""
    source: str = ""
    """ACCUMULATED, or empty for any other source."""


@dataclass(frozen=True)
class WorkBeside:
    """Lines that do one piece of work beside the training."""

    group: LineGroup
    rows: tuple[BesideSeen, ...]
    """Those of the lines whose operators the flow has seen."""
    function: str
    """The user's function that holds all of it."""
    whole: bool
    """Whether it is all that this function does, not just some of its lines."""
    device_ms: float
    """Milliseconds a step on the device that trains."""

    @property
    def sources(self) -> frozenset[str]:
        """What it works on, as in `BesideSeen.source`."""
        return frozenset(row.source for row in self.rows)

    @property
    def operators(self) -> frozenset[str]:
        """Names of its operators: aten.clone, aten.mul."""
        return frozenset(name for row in self.rows for name in row.operators)

    @property
    def hooked(self) -> bool:
        """Whether module hooks do it."""
        return any(line.hooked for line in self.group.lines)

    @property
    def covers(self) -> tuple[str, ...]:
        """All its lines as file:line, with those between them in each function."""
        numbers: dict[Function, list[int]] = defaultdict(list)
        for line in self.group.lines:
            numbers[_function(line.where)].append(line.where.line)
        if not self.whole:
            return tuple(dict.fromkeys(str(line.where) for line in self.group.lines))
        return tuple(
            f"{file}:{number}"
            for (file, _), lines in numbers.items()
            for number in range(min(lines), max(lines) + 1)
        )

    @property
    def text(self) -> str:
        """The lines' source and what they call."""
        return "\n".join(f"{line.where.source}\n{line.callee}" for line in self.group.lines)


def works(profile: Profile) -> Iterator[WorkBeside]:
    """All such work, whatever it costs; none if the data flow or the host's lines are unknown.

    A function that serves the training in none of its lines or calls is one piece of work, with
    all that runs in it. In other functions only the lines beside the training are.
    """
    seen = flow.of(profile)
    if seen is None or profile.host is None:
        return
    rows = {row.where: row for row in seen.beside}
    serving = _serving(profile, seen)
    groups: dict[_Place, list[HostLine]] = defaultdict(list)
    for line in profile.host.lines if rows else ():
        row = rows.get(str(line.where))
        if line.loading or line.updating:
            continue
        whole = _outermost(line, serving)
        if row is not None and row.source == ACCUMULATED:
            groups[_Place(_function(line.where), False, ACCUMULATED)].append(line)
        elif whole is not None:
            groups[_Place(_function(whole), True)].append(line)
        elif row is not None and _certain(row, line):
            groups[_Place(_function(line.where), False)].append(line)
    _add_freeing(profile, seen, groups)
    for place, lines in groups.items():
        work = _work(profile, place, lines, rows)
        if work is not None:
            yield work


def _add_freeing(profile: Profile, seen: FlowSeen, groups: dict[_Place, list[HostLine]]) -> None:
    """Add lines of the same function that rebind a name used in its work.

    No operator runs there; the time goes to freeing the previous tensors.
    """
    assert profile.host is not None
    running = {*seen.training, *(row.where for row in seen.beside)}
    for line in profile.host.lines:
        if not line.callee.isidentifier() or line.package or str(line.where) in running:
            continue
        for place, lines in groups.items():
            words = {word for other in lines for word in WORD.findall(other.where.source)}
            if not place.whole and _function(line.where) == place.function and (
                line.callee in words
            ):  # fmt: skip
                lines.append(line)
                break


def _work(
    profile: Profile, place: _Place, lines: list[HostLine], rows: dict[str, BesideSeen]
) -> WorkBeside | None:
    """The work, or None if too little of it is known to be beside the training."""
    of_rows = [line for line in lines if str(line.where) in rows]
    certain_ms = sum(line.ms for line in of_rows if _certain(rows[str(line.where)], line))
    total_ms = sum(line.ms for line in lines)
    doubted_ms = sum(line.ms for line in of_rows) - certain_ms
    if certain_ms < CERTAIN * total_ms or doubted_ms > DOUBTED * total_ms or not total_ms:
        return None
    (group,) = host_lines.together(profile, lines)
    places = {str(line.where) for line in lines}
    standing = [
        operator
        for operator in profile.operators
        if str(operator.where) in places and not operator.backward
    ]
    on_device = operators.total(profile, standing) if savings.accelerated(profile) else 0.0
    known = tuple(row for where, row in rows.items() if where in places)
    function = place.function[1].rpartition(".")[2]
    return WorkBeside(group, known, function, place.whole, on_device)


def _certain(row: BesideSeen, line: HostLine) -> bool:
    """Whether no result returns to the training; hooks only report what they read."""
    return not row.steers or line.hooked


def _function(place: Place) -> Function:
    return place.file, host_lines.function(place)


def _serving(profile: Profile, seen: FlowSeen) -> frozenset[Function]:
    """Functions that contain the training's lines or call them."""
    assert profile.host is not None
    training = frozenset(seen.training)
    serving = {
        _function(place)
        for line in profile.host.lines
        if str(line.where) in training or line.updating or "backward(" in line.callee
        for place in (*line.chain, line.where)
    }
    serving |= {
        _function(operator.where)
        for operator in profile.operators
        if operator.where is not None and (operator.backward or str(operator.where) in training)
    }
    return frozenset(serving)


def _outermost(line: HostLine, serving: frozenset[Function]) -> Place | None:
    """The outermost function on the way to this line that does not serve the training."""
    ways = (place for place in (*line.chain, line.where) if _function(place) not in serving)
    return next(ways, None)
