"""Gradients of all past steps add up: they are never zeroed.

## What it sees

Optimizer steps with one backward pass each, no `zero_grad` in any of them, and a backward pass
that adds to existing gradients, once for each parameter.

## Why it matters

The optimizer then steps along the sum of all gradients since the start: training diverges or learns
slowly, without an error.

## Cure

`optimizer.zero_grad()` after (or before) each step.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
- https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP013", severity=Severity.WARNING, since="0.2.0")
STEP = r"Optimizer\.step#.*"
ZEROING = r"aten::(zero_|_foreach_zero_|fill_\w*)"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    job = profile.job
    if job is None or job.micro_steps > 1 or not operators.called(profile, STEP):
        return
    if _zeroed(profile) or len(job.optimizers) != 1:
        return
    tensors = job.optimizers[0].tensors
    added = operators.accumulating(profile)
    calls = sum(operator.calls for operator in added)
    if not tensors or calls < tensors:
        return
    took = operators.total(profile, added)
    saving = device_time.of_device(
        profile, took, f"adding to old gradients takes {units.milliseconds(took)}"
    )
    where = profile.seen.optimizer_where if profile.seen is not None else None
    yield Diagnosis(
        title="gradients are never zeroed: those of all past steps add up",
        evidence=f"{calls:.0f} additions to gradients in the backward pass, {tensors} parameters; "
        "no zero_grad between the steps",
        cure=Cure(
            "Zero the gradients after each step.",
            savings.lines(where, "optimizer.step()", "optimizer.step()", "optimizer.zero_grad()"),
        ),
        where=where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _zeroed(profile: Profile) -> bool:
    """Whether zero_grad is called or zeros are filled in outside the model's backward pass."""
    if operators.called(profile, r"Optimizer\.zero_grad#.*"):
        return True
    fills = [operator for operator in operators.called(profile, ZEROING) if not operator.backward]
    return any(operator.where is None or "grad" in operator.where.source for operator in fills)
