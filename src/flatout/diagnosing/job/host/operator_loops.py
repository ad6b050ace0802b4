"""Python loops that call operators one by one, outside of the model."""

from __future__ import annotations

from collections import defaultdict

from flatout.diagnosing.job import host_lines
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns.host_time import HostKind
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile

MANY = 24
"""Operators a step from which a line is taken for a loop."""
REPEATED = 12
"""Calls of one and the same operator that these must contain."""
INNER = ("aten::as_strided", "aten::empty", "aten::empty_strided", "aten::resize_")
"""Operators that others call, some of them several times."""
BUSIEST = 0.2
"""Of the operators of a forward pass."""
SMALL_MS = 0.03
"""Mean time of an operator below which its call is what costs."""


def loops(profile: Profile) -> list[LineGroup]:
    """Lines outside of the model that call many small operators."""
    kinds = (HostKind.TORCH, HostKind.PYTHON)
    own = [
        line
        for line in host_lines.of(profile, *kinds)
        if not (line.modelling or line.framework or line.updating)
        and "backward(" not in line.callee
    ]
    return [group for group in host_lines.by_line(profile, own) if _is_loop(profile, group)]


def _is_loop(profile: Profile, group: LineGroup) -> bool:
    operators = _called(profile, group.where)
    calls: dict[str, float] = defaultdict(float)
    for operator in operators:
        calls[operator.name] += operator.calls
    most = max((number for name, number in calls.items() if name not in INNER), default=0.0)
    small = sum(operator.host_ms + operator.device_ms for operator in operators)
    total = sum(calls.values())
    return total >= MANY and most >= REPEATED and small <= SMALL_MS * total


def _called(profile: Profile, where: Place | str) -> list[Operator]:
    """Operators that a line calls itself, not those of the backward pass."""
    return [
        operator
        for operator in profile.operators
        if str(operator.where) == str(where) and not operator.backward
    ]


def busiest_line(profile: Profile) -> tuple[Place, float] | None:
    """The line that calls most operators again and again, in the model or not, and their number.

    None: no line calls a fifth of those of the forward pass.
    """
    calls: dict[Place, float] = defaultdict(float)
    repeated: dict[Place, float] = defaultdict(float)
    for operator in profile.operators:
        if operator.where is None or operator.backward:
            continue
        calls[operator.where] += operator.calls
        if operator.name not in INNER:
            repeated[operator.where] = max(repeated[operator.where], operator.calls)
    loops = [place for place in calls if repeated[place] >= REPEATED and calls[place] >= MANY]
    place = max(loops, key=lambda place: calls[place], default=None)
    if place is None or calls[place] < BUSIEST * sum(calls.values()):
        return None
    return place, calls[place]


def called_by(profile: Profile, group: LineGroup) -> list[Operator]:
    """Operators that these lines call themselves."""
    places = dict.fromkeys(str(line.where) for line in group.lines)
    return [operator for place in places for operator in _called(profile, place)]
