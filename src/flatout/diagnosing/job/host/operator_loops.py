"""Python loops that call operators one by one, outside of the model."""

from __future__ import annotations

import re
from collections import defaultdict

from flatout.diagnosing.job import host_lines
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns.host_time import HostKind, total_ms
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile

MANY = 24
"""Operators a step from which a line is taken for a loop."""
REPEATED = 12
"""Calls of one and the same operator that these must contain."""
INNER = ("aten::as_strided", "aten::empty", "aten::empty_strided", "aten::resize_")
"""Operators that others call, some of them several times."""
PASSES_BACK = re.compile(r"\b(backward|grad)\(")
"""Calls of a backward pass."""
BUSIEST = 0.2
"""Of the operators of a forward pass."""
SMALL_MS = 0.03
"""Mean time of an operator below which its call is what costs."""


def loops(profile: Profile) -> list[LineGroup]:
    """Lines outside of the model that call many small operators."""
    kinds = (HostKind.TORCH, HostKind.PYTHON)
    forward = _forward_without_model(profile)
    forward |= {str(line.where) for line in host_lines.of(profile, *kinds) if line.modelling}
    own = [
        line
        for line in host_lines.of(profile, *kinds)
        if not (line.modelling or line.framework or line.updating or str(line.where) in forward)
        and not PASSES_BACK.search(line.callee)
    ]
    return [group for group in host_lines.by_line(profile, own) if _is_loop(profile, group)]


def _forward_without_model(profile: Profile) -> set[str]:
    """Where no module is trained: the lines that have a backward pass are the model's."""
    if profile.job is None or profile.job.models:
        return set()
    return {str(operator.where) for operator in profile.operators if operator.backward}


def update_ms(profile: Profile) -> float:
    """What the lines take that update the weights by hand."""
    update = profile.seen.update if profile.seen is not None else None
    lines = host_lines.of(profile, HostKind.TORCH, HostKind.PYTHON) if update is not None else []
    return host_lines.scale(profile) * total_ms(line for line in lines if line.updating)


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
    update = profile.seen.update if profile.seen is not None else None
    updating = update.lines if update is not None else ()
    for operator in profile.operators:
        if operator.where is None or operator.backward or str(operator.where) in updating:
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
