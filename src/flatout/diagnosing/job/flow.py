"""What the checks ask of the data flow of a step, and the cost of operators in it."""

from __future__ import annotations

from typing import Protocol

from flatout.diagnosing.job import operators, savings
from flatout.nouns import units
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import ConstantSeen, DoubleSeen, FlowSeen

WITHIN = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "fill_", "zero_", "copy_", "clone", "detach_",
        "lift_fresh", "to", "_to_copy", "arange", "contiguous", "result_type",
    )
)  # fmt: skip
"""Operators that tensor-making operators call in turn."""
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "slice", "select", "view", "unsqueeze", "squeeze", "expand", "detach", "as_strided",
        "transpose", "t", "permute", "alias", "reshape", "_unsafe_view", "_reshape_alias",
    )
)  # fmt: skip
SOURCES = {
    "aten.lift_fresh": "a tensor is made in float64 from Python or NumPy values",
    "aten._to_copy": "a tensor is converted to float64",
    "parameter": "the model's parameters are float64",
    "buffer": "a buffer of the model is float64",
    "tensor": "a float64 tensor from before the step is used",
}


def of(profile: Profile) -> FlowSeen | None:
    """The data flow of a step, or None if it was not followed."""
    return profile.seen.flow if profile.seen is not None else None


def constant_lines(profile: Profile) -> frozenset[str]:
    """Lines that make the same tensor again in each step."""
    flow = of(profile)
    rows = flow.constants if flow is not None else ()
    return frozenset(line for row in rows for line in (row.where, *row.lines))


def line_source(profile: Profile, where: str | None) -> str:
    """The text of a line, as recorded with operators, or empty if unknown."""
    places = (operator.where for operator in profile.operators)
    return next((place.source for place in places if place is not None and str(place) == where), "")


class OperatorShare(Protocol):
    """Some of a step's operators."""

    @property
    def s(self) -> float: ...

    @property
    def flops(self) -> float: ...


def unread_ms(profile: Profile, flow: FlowSeen, row: OperatorShare) -> tuple[float, str]:
    """Milliseconds of the measured step that some of its operators take, and how computed.

    On an accelerator by their share of the step's floating-point operations if known, else by
    their share of the time in operators.
    """
    took = operators.total(profile, profile.operators)
    by_flops = savings.accelerated(profile) and row.flops > 0
    share = row.flops if by_flops else row.s / flow.operators_s if flow.operators_s > 0 else 0.0
    share = min(share, 1.0)
    of_what = "floating-point operations" if by_flops else "time in operators"
    return share * took, (
        f"{units.share(share)} of the step's {of_what}; all operators take "
        f"{units.milliseconds(took)}"
    )


def constant_ms(profile: Profile, row: ConstantSeen) -> float:
    """Milliseconds of a step that making it takes on the device that trains.

    On a CPU, lines that do nothing else count whole, with the Python around the operators. Other
    lines count the operators' time in the counted step, at most their recorded time. Operators
    that also run on changing values count by their share of the step.
    """
    seen = of(profile)
    if row.shared and seen is not None:
        return unread_ms(profile, seen, row)[0]
    names = {f"aten::{name.partition('.')[2]}" for name in row.operators} | WITHIN
    standing = [operator for operator in profile.operators if _stands_at(operator, row)]
    making = [operator for operator in standing if operator.name in names]
    recorded = operators.total(profile, making)
    if savings.accelerated(profile):
        return recorded
    counted = row.s * 1000
    if any(operator.name not in names | VIEWS for operator in standing):
        took = min(counted, recorded) if recorded > 0 else counted
    else:
        took = _line_ms(profile, row) or operators.total(profile, standing) or counted
    return max(took, _python_ms(profile, row))


def _line_ms(profile: Profile, row: ConstantSeen) -> float:
    """Milliseconds of a step sampled on these lines, or 0 if stacks were not sampled."""
    if profile.host is None:
        return 0.0
    took = sum(line.ms for line in profile.host.lines if str(line.where) in (row.where, *row.lines))
    return took * profile.host.scale(profile.anatomy.step_ms)


def _python_ms(profile: Profile, row: ConstantSeen) -> float:
    """Milliseconds of the calls that make it from Python values, with their conversion."""
    calls = profile.seen.calls if profile.seen is not None else ()
    made = (call for call in calls if call.name in ("torch.tensor", "torch.as_tensor"))
    return sum(call.s * 1000 for call in made if call.where in row.lines)


def _stands_at(operator: Operator, row: ConstantSeen) -> bool:
    return not operator.backward and str(operator.where) in (row.where, *row.lines)


def source(profile: Profile, row: DoubleSeen) -> tuple[str, str | None]:
    """Where float64 comes from, in words, and its file:line."""
    seen = profile.seen
    where = row.where
    if row.what == "batch":
        where = seen.loader_where if seen is not None else None
        return f"the batch's field {row.part or '(all of it)'} is float64", where
    if row.what == "parameter" and seen is not None:
        where = seen.double_where or where
    if seen is not None and seen.flow is not None and seen.flow.default_double and (
        row.what not in ("aten._to_copy", "tensor")
    ):  # fmt: skip
        return "torch's default dtype is float64", seen.double_where or where
    words = SOURCES.get(row.what, f"{row.what.partition('.')[2] or row.what} makes float64")
    return f"{words}{f', the field {row.part} of the batch' if row.part else ''}", where
