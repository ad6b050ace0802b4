"""Python loops that call operators one by one, outside of the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from flatout.diagnosing.job import host_lines
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind, total_ms
from flatout.nouns.place import Place
from flatout.nouns.profile import Operator, Profile

MANY = 24
"""Operators a step from which a line counts as a loop."""
REPEATED = 12
"""Calls of one operator that these must include."""
INNER = ("aten::as_strided", "aten::empty", "aten::empty_strided", "aten::resize_")
"""Operators that others call, sometimes repeatedly."""
PASSES_BACK = re.compile(r"\b(backward|grad)\(")
"""Calls of a backward pass."""
THROUGH_ALL = re.compile(
    r"\b(update_parameters|clip_grad_norm_|clip_grad_value_|clip_grads_with_norm_|get_total_norm|"
    r"unscale_|zero_grad|parameters_to_vector|vector_to_parameters)\("
)
"""Functions of torch that take all weights at once and loop over them."""
RECURRENT = re.compile(r"aten::(gru|lstm|rnn_tanh|rnn_relu)")
"""Layers of torch that loop over the time steps."""
FEW = 2
"""The most calls of such a layer a step on one line; more are a script's loop over sequences."""
BUSIEST = 0.2
"""Least share of a forward pass's operators that the busiest line calls."""
SMALL_MS = 0.03
"""Mean time of an operator up to which its call is the main cost."""


def loops(profile: Profile) -> list[LineGroup]:
    """Lines outside of the model that call many small operators one by one."""
    return [
        group for group in repeated(profile) if not is_of_torch(called_on(profile, group.where))
    ]


def repeated(profile: Profile) -> list[LineGroup]:
    """Lines outside of the model that call many small operators, or have torch call them."""
    kinds = (HostKind.TORCH, HostKind.PYTHON)
    forward = _forward_without_model(profile)
    forward |= {str(line.where) for line in host_lines.of(profile, *kinds) if line.modelling}
    forward |= _formatting(profile)
    own = [
        line
        for line in host_lines.of(profile, *kinds)
        if not (line.modelling or line.framework or line.updating or str(line.where) in forward)
        and not PASSES_BACK.search(line.callee)
    ]
    return [group for group in host_lines.by_line(profile, own) if _is_repeated(profile, group)]


def _forward_without_model(profile: Profile) -> set[str]:
    """The lines with a backward pass, which are the model's if no module is trained."""
    if profile.job is None or profile.job.models:
        return set()
    return {str(operator.where) for operator in profile.operators if operator.backward}


def _formatting(profile: Profile) -> set[str]:
    """Lines that turn tensors into text, for which torch calls many operators."""
    return {str(group.where) for group in host_lines.formatting(profile)}


def text_share(profile: Profile) -> float:
    """Share of all operator calls that torch makes to turn tensors into text."""
    places = _formatting(profile)
    calls = sum(operator.calls for operator in profile.operators)
    formatting = sum(row.calls for row in profile.operators if str(row.where) in places)
    return formatting / calls if calls > 0 else 0.0


def update_ms(profile: Profile) -> float:
    """Milliseconds a step of the lines that update the weights by hand."""
    update = profile.seen.update if profile.seen is not None else None
    lines = host_lines.of(profile, HostKind.TORCH, HostKind.PYTHON) if update is not None else []
    return host_lines.scale(profile) * total_ms(line for line in lines if line.updating)


def _is_repeated(profile: Profile, group: LineGroup) -> bool:
    operators = called_on(profile, group.where)
    calls: dict[str, float] = defaultdict(float)
    for operator in operators:
        calls[operator.name] += operator.calls
    most = max((number for name, number in calls.items() if name not in INNER), default=0.0)
    small = sum(operator.host_ms + operator.device_ms for operator in operators)
    total = sum(calls.values())
    return total >= MANY and most >= REPEATED and small <= SMALL_MS * total


def called_on(profile: Profile, where: Place | str) -> list[Operator]:
    """Operators that one line calls itself, without the backward pass."""
    return [
        operator
        for operator in profile.operators
        if str(operator.where) == str(where) and not operator.backward
    ]


def busiest_line(profile: Profile) -> tuple[Place, float] | None:
    """The line that calls most operators in a loop, in the model or not, and their number.

    None if no line calls a fifth of the forward pass's operators. Updates of weights and torch's
    own loops are left out.
    """
    update = profile.seen.update if profile.seen is not None else None
    updating = {*(update.lines if update is not None else ()), *_formatting(profile)}
    lines: dict[Place, list[Operator]] = defaultdict(list)
    for operator in profile.operators:
        where = operator.where
        if where is None or str(where) in updating or operator.backward:
            continue
        if operator.kind is not Kind.OPTIMIZER:
            lines[where].append(operator)
    calls = {place: sum(row.calls for row in rows) for place, rows in lines.items()}
    loops = [
        place
        for place, rows in lines.items()
        if calls[place] >= MANY
        and any(row.calls >= REPEATED and row.name not in INNER for row in rows)
        and not is_of_torch(rows)
    ]
    place = max(loops, key=lambda place: calls[place], default=None)
    if place is None or calls[place] < BUSIEST * sum(calls.values()):
        return None
    return place, calls[place]


def recurrent_share(profile: Profile) -> float:
    """Share of all operator calls on lines where torch itself loops over the time steps."""
    places = {
        operator.where
        for operator in profile.operators
        if operator.where is not None
        and RECURRENT.fullmatch(operator.name)
        and is_of_torch(called_on(profile, operator.where))
    }
    calls = sum(operator.calls for operator in profile.operators)
    inside = sum(operator.calls for operator in profile.operators if operator.where in places)
    return inside / calls if calls > 0 else 0.0


def is_of_torch(operators: Sequence[Operator]) -> bool:
    """Whether torch itself loops over what this line gives it: all weights, or time steps.

    If the script calls it in a loop, all its operators are called that often.
    """
    calls = [operator.calls for operator in operators if operator.name not in INNER]
    sources = {operator.where.source for operator in operators if operator.where is not None}
    if any(THROUGH_ALL.search(source) for source in sources):
        return min(calls, default=0.0) < REPEATED
    recurrent = sum(row.calls for row in operators if RECURRENT.fullmatch(row.name))
    return 0 < recurrent <= FEW


def called_by(profile: Profile, group: LineGroup) -> list[Operator]:
    """Operators that these lines call themselves."""
    places = dict.fromkeys(str(line.where) for line in group.lines)
    return [operator for place in places for operator in called_on(profile, place)]
