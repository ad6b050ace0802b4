"""Operators are called one by one from a Python loop, on single elements, samples or parameters.

## What it sees

A line outside of the model's forward pass that calls operators 24 times a step or more, each of
them so small that the call and not the work is what takes time, for 4 % of the step or more:
filling a mask element by element, `.item()` for each parameter, a loss summed over samples, an
average of weights parameter by parameter.

## Why it matters

Each call costs some microseconds of Python and dispatch, however small its tensors are. One
operator on the whole tensor, or one `torch._foreach_` call on the list of parameters, does the same
at once.

## Evidence

The line, its milliseconds a step, and the operators that it calls with their numbers.

## Cure

The same on whole tensors. For parameters: `clip_grad_norm_`, `torch._foreach_norm`,
`torch._foreach_lerp_`, `AveragedModel`. The gain: eight tenths of the line's time. Compiling the
model does not cure it, because the line is not in the model.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
- https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import operator_loops
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="HOST011", severity=Severity.WARNING, since="0.3.0")
SPARED = 0.8
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
ELEMENTS = re.compile(r"aten::(select|slice|index|unbind|item|fill_|index_put_|_index_put_impl_)")
PARAMETERS = re.compile(
    r"\b(param\w*|p|w|weights?|grads?|ema\w*|shadow\w*|avg\w*|averag\w*|state_dict|named_parameters)\b"
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function with such lines."""
    looping = [line for loop in operator_loops.loops(profile) for line in loop.lines]
    for group in host_lines.by_function(profile, looping):
        operators = operator_loops.called_by(profile, group)
        saves = host_lines.saved_ms(profile, SPARED / host_lines.SPARED * group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        share = units.share(group.ms / profile.anatomy.step_ms)
        calls = sum(operator.calls for operator in operators)
        text, commands = _cure(group, operators)
        yield Diagnosis(
            title=f"{_subject(operators)} one by one in a Python loop: "
            f"{units.milliseconds(group.ms)}, {share} of the step",
            evidence=f"{calls:,.0f} operators a step from here, "
            f"{_names(operators)}; {host_lines.evidence(profile, group)}",
            cure=Cure(text, savings.lines(group.where, group.where.source, *commands)),
            severity=savings.severity(profile, saves),
            where=str(group.where),
            saves_ms=saves,
            reason=f"eight tenths of {units.milliseconds(group.ms)} for {calls:,.0f} calls of "
            "small operators",
        )


def _subject(operators: Sequence[Operator]) -> str:
    if any(
        operator.name in READS and operator.calls >= operator_loops.MANY / 4
        for operator in operators
    ):
        return "values are read from tensors"
    elements = sum(operator.calls for operator in operators if ELEMENTS.match(operator.name))
    if elements >= sum(operator.calls for operator in operators) / 3:
        return "elements are accessed"
    return "small operators are called"


def _names(operators: Sequence[Operator]) -> str:
    most = sorted(operators, key=lambda operator: -operator.calls)[:3]
    return ", ".join(f"{operator.name} {operator.calls:,.0f} times" for operator in most)


def _cure(group: LineGroup, operators: Sequence[Operator]) -> tuple[str, tuple[str, ...]]:
    source = " ".join(line.where.source for line in group.lines)
    names = " ".join(operator.name for operator in operators)
    if PARAMETERS.search(source) and re.search(r"norm|pow|item", names):
        return (
            "Let one call work on all gradients; it reads nothing back.",
            ("torch.nn.utils.clip_grad_norm_(model.parameters(), limit)",
             "# or: torch.stack(torch._foreach_norm(grads)).norm()"),
        )  # fmt: skip
    if PARAMETERS.search(source):
        return (
            "Work on all parameters with one call each.",
            ("torch._foreach_lerp_(averages, parameters, 1 - decay)",
             "# also _foreach_mul_, _foreach_add_; averages: swa_utils.AveragedModel"),
        )  # fmt: skip
    return (
        "Vectorise it: one operator on the whole tensor, not one for each element or sample; "
        "read values back once, with .tolist(), after the loop.",
        ("# on whole tensors: index tensors, broadcasting, torch.where, sum(dim)",),
    )
