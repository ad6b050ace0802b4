"""Gradients are filled with zeros in each step instead of being set to None.

## What it sees

`zero_grad(set_to_none=False)` (or `grad.zero_()`): a fill of every gradient each step.

## Why it matters

The fill goes through memory once for all gradients, and the backward pass then adds to them, which
reads and writes them once more, instead of assigning its results. The memory of gradients also
stays taken during the forward pass.

## Cure

`optimizer.zero_grad()`: setting them to None is the default since torch 2.0.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="MEM008", severity=Severity.WARNING, since="0.2.0")
ZEROS = r"aten::(zero_|_foreach_zero_|fill_)"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    zeros = [operator for operator in operators.called(profile, ZEROS) if _of_gradients(operator)]
    if not zeros:
        return
    lines = [operator for operator in zeros if operator.where is not None]
    added = operators.accumulating(profile)
    took = operators.total(profile, zeros)
    adding = operators.total(profile, added) if _accumulates(profile, added) else 0.0
    saving = device_time.of_device(
        profile,
        took + adding,
        f"filling takes {units.milliseconds(took)}, adding to the zeros "
        f"{units.milliseconds(adding)} a step: both fall away",
    )
    place = operators.costliest_place(profile, lines)
    yield Diagnosis(
        title="gradients are filled with zeros instead of being set to None",
        evidence=operators.evidence(profile, [*zeros, *(added if adding else [])]),
        cure=Cure(
            "Set them to None: the default of zero_grad.",
            savings.lines(
                place,
                place.source if place is not None else "optimizer.zero_grad(set_to_none=False)",
                "optimizer.zero_grad()",
            ),
        ),
        severity=saving.severity if saving.worth else Severity.NOTE,
        where=str(place) if place is not None else None,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _of_gradients(operator: Operator) -> bool:
    source = operator.where.source if operator.where is not None else ""
    return "set_to_none=False" in source or "grad.zero_()" in source


def _accumulates(profile: Profile, added: list[Operator]) -> bool:
    """Whether each tensor has an addition, beyond those of the model's own backward pass."""
    optimizers = profile.job.optimizers if profile.job is not None else ()
    tensors = sum(optimizer.tensors for optimizer in optimizers)
    return 0 < tensors <= sum(operator.calls for operator in added)
