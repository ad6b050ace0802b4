"""A normalisation is written by hand, from means, powers and square roots.

## What it sees

In one function of the user's: a mean (or variance), a square root (or its reciprocal) and the
multiplications and divisions around them, of a model that is not compiled.

## Why it matters

Each of these operators reads and writes the whole tensor. Torch's own normalisation reads it once
or twice, and its backward pass is one kernel as well.

## Evidence

The operators of that function, with their time, lines and shapes.

## Cure

`torch.nn.functional.layer_norm`, `rms_norm` (torch 2.4), `group_norm` or `batch_norm`; or
`torch.compile`, which fuses what is written by hand.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN009", severity=Severity.WARNING, since="0.2.0")
MEAN = re.compile(r"aten::(mean|var|std|var_mean|std_mean)")
ROOT = re.compile(r"aten::(rsqrt|sqrt|std|std_mean|norm|linalg_vector_norm)")
SCALING = re.compile(r"aten::(mul|div|sub|add|pow|neg|reciprocal|sum|expand)(_|\.\w+)?")
SAVED, SAVED_CPU = 0.6, 0.4
"""Cautious shares of the time of these operators that one kernel saves."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function."""
    if profile.job is not None and any(model.compiled for model in profile.job.models):
        return
    for (_, function), group in operators.by_function(profile.operators).items():
        if "step" in function or "optim" in function:
            continue
        parts = _parts(group)
        if parts:
            yield from _diagnosis(profile, parts)


def _parts(group: list[Operator]) -> list[Operator]:
    means = [operator for operator in group if MEAN.fullmatch(operator.name)]
    roots = [operator for operator in group if ROOT.fullmatch(operator.name)]
    if not means or not roots or not any(SCALING.fullmatch(operator.name) for operator in group):
        return []
    lines = {operator.where.line for operator in (*means, *roots) if operator.where is not None}
    near = range(min(lines) - 3, max(lines) + 4)
    return [
        operator
        for operator in group
        if operator.where is not None
        and operator.where.line in near
        and (operator in means or operator in roots or SCALING.fullmatch(operator.name))
    ]


def _diagnosis(profile: Profile, parts: list[Operator]) -> Iterator[Diagnosis]:
    took = operators.total(profile, parts)
    saved = SAVED if savings.accelerated(profile) else SAVED_CPU
    saving = device_time.of_device(
        profile,
        took * saved,
        f"these operators take {units.milliseconds(took)}; one kernel is taken to save "
        f"{units.share(saved)} of it (a cautious constant)",
    )
    if not saving.worth:
        return
    place = operators.costliest_place(profile, parts)
    old = place.source if place is not None else ""
    yield Diagnosis(
        title=f"normalisation by hand: {units.milliseconds(took)} of the step",
        evidence=operators.evidence(profile, parts),
        cure=Cure(
            "Use torch's own: rms_norm where no mean is subtracted.",
            savings.lines(
                place, old, "y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)  # or F.rms_norm"
            ),
        ),
        severity=saving.severity,
        where=str(place) if place is not None else None,
        boost=savings.boost(profile, "compile"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
