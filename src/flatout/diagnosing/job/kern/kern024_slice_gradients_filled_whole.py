"""The backward pass of slices that a loop takes fills a tensor of the whole size for each of them.

## What it sees

`x[:, t]` or `x[:, a:b]` taken 8 times a step or more on one line, each an eighth of the tensor or
less, with a backward pass: for each slice torch fills a tensor of the whole size with zeros, copies
the slice's gradient into it, and adds it to those of the other slices.

## Why it matters

With n time steps, the gradient of the sequence is written and added up n times instead of once:
with 200 steps this takes longer than the recurrent cell itself.

## Evidence

The line, the slices with their shape and that of the whole, and the time of filling and adding.

## Cure

Take all slices at once: `x.unbind(1)` gives them as a tuple, and its backward pass stacks their
gradients in one pass; `x.split(size, 1)` for wider slices. The gain: the time of filling and adding
up, less that of two passes over the whole tensor.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.unbind.html
- https://docs.pytorch.org/docs/stable/generated/torch.split.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.operators import Shape
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Place, Profile

CHECK = Check(code="KERN024", severity=Severity.WARNING, since="0.2.0")
SELECTS, SLICES = "aten::select_backward", "aten::slice_backward"
PASSES = r"aten::(fill_|zero_|add_?)"
"""Operators that pass over tensors of the whole size."""
MANY = 8
"""Least number of slices taken, and of slices in the whole."""
LEAST = 0.03
"""Share of the step."""
LEFT = 2
"""Passes over the whole tensor that remain, as many as one or two slices take now."""
MOST_MS = 0.2e-6
"""The most per number a pass handles on a CPU, at 20 GB/s; more means a busy machine."""


@dataclass(frozen=True)
class _Slices:
    """The slices that one line takes of tensors of one shape."""

    operator: Operator
    part: Shape
    whole: Shape
    passes: tuple[Operator, ...]
    """Operators that pass over the whole, some also over other tensors."""

    def ms(self, profile: Profile) -> float:
        """Milliseconds in passes over the whole, at most one per slice, by its share of numbers."""
        took = 0.0
        for operator in self.passes:
            others = [operators.elements(shape) for shape in operators.inputs(operator)
                      if shape != self.whole]  # fmt: skip
            calls = min(operator.calls, self.operator.calls)
            whole = calls * operators.elements(self.whole)
            mean = sum(others) / len(others) if others else 0.0
            share = whole / (whole + (operator.calls - calls) * mean)
            most = MOST_MS * whole * (3 if "add" in operator.name else 1)
            spent = share * operators.ms(profile, operator)
            took += spent if savings.accelerated(profile) else min(spent, most)
        return min(took, profile.anatomy.step_ms)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    lines: dict[Place, list[Operator]] = defaultdict(list)
    for operator in profile.operators:
        if operator.backward and operator.where is not None:
            lines[operator.where].append(operator)
    for place, group in lines.items():
        slices = _slices(group)
        if slices is not None:
            yield from _diagnosis(profile, place, slices)


def _slices(group: Sequence[Operator]) -> _Slices | None:
    """The line's slices of the largest tensor, or None if it takes no such slices."""
    many = [operator for operator in group if operator.calls >= MANY and operator.shapes]
    passes = [operator for operator in many if operators.matches(PASSES, operator.name)]
    wholes = {shape for operator in passes for shape in operators.inputs(operator)}
    for operator in many:
        if operator.name not in (SELECTS, SLICES):
            continue
        parts = operators.first_inputs(operator)
        pairs = [(whole, part) for whole in wholes for part in parts if _is_slice(part, whole)]
        if pairs:
            whole, part = max(pairs, key=lambda pair: operators.elements(pair[0]))
            alike = tuple(other for other in passes if whole in operators.inputs(other))
            return _Slices(operator, part, whole, alike)
    return None


def _is_slice(part: Shape, whole: Shape) -> bool:
    """Whether it equals the whole except for one dimension, and is at most an eighth of it."""
    if operators.elements(whole) < MANY * operators.elements(part) or not part:
        return False
    if len(part) == len(whole):
        return sum(size != of for size, of in zip(part, whole, strict=True)) == 1
    return any(part == whole[:at] + whole[at + 1 :] for at in range(len(whole)))


def _diagnosis(profile: Profile, place: Place, slices: _Slices) -> Iterator[Diagnosis]:
    took = slices.ms(profile)
    parts = operators.elements(slices.whole) // operators.elements(slices.part)
    left = LEFT / min(parts, slices.operator.calls)
    saving = device_time.of_device(
        profile,
        took * (1 - left),
        f"filling and adding up takes {units.milliseconds(took)}, of which {units.share(left)} "
        "would be left for one gradient of the whole",
    )
    if saving.ms < LEAST * profile.anatomy.step_ms:
        return
    whole = "x".join(map(str, slices.whole))
    select = slices.operator.name == SELECTS
    yield Diagnosis(
        title=f"the backward pass of {slices.operator.calls:,.0f} slices fills the whole tensor "
        f"for each: {units.milliseconds(took)}",
        evidence=f"slices of {'x'.join(map(str, slices.part))} out of {whole}; "
        f"{operators.evidence(profile, slices.passes)}",
        cure=Cure(
            "Take all slices with one call before the loop: its backward pass puts their gradients "
            "together once.",
            savings.lines(
                place,
                place.source,
                "for x_t in x.unbind(1):  # instead of x[:, t]"
                if select
                else "for part in x.split(size, 1):  # instead of x[:, a:b]",
            ),
        ),
        severity=saving.severity,
        where=str(place),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
