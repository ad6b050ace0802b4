"""The model is called in training mode, but its output is not used for learning.

## What it sees

Training calls of the model, with gradients on, whose outputs are read (for a metric, say) but get
no backward pass. LOOP016 reports calls whose outputs nobody reads, LOOP024 calls that repeat
another one.

## Why it matters

A second forward pass for a metric costs a third of a step and the memory of all its activations;
in training mode it also moves the running statistics of batch norm.

## Evidence

How many such calls a step has, and the line that calls the model.

## Cure

Reuse the outputs of the training call; where a second call is needed, make it under
`torch.no_grad()` and in evaluation mode.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html
- https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP012", severity=Severity.WARNING, since="0.2.0")
LEAST = 0.5
"""Calls a step."""
FORWARD = 0.3
"""Share of computing that forward passes take, if operators do not show it."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    watched = profile.seen
    if watched is None:
        return
    unused = watched.unused_forwards - _unread(profile)
    if unused < LEAST:
        return
    used = profile.job.micro_steps if profile.job is not None else 1.0
    took, words = _forward_ms(profile)
    saved = took * unused / (unused + max(used, 1.0))
    saving = device_time.of_device(
        profile,
        saved,
        f"{words}; {unused:.3g} of {unused + max(used, 1.0):.3g} "
        f"calls are not used: {units.milliseconds(saved)}",
    )
    yield Diagnosis(
        title=f"{unused:.3g} forward passes a step are not used",
        evidence=f"{unused:.3g} training calls of the model a step with "
        "gradients, and no backward pass through their outputs",
        cure=Cure(
            "Reuse the outputs of the training call, or call the model without gradients.",
            savings.lines(
                watched.model_where,
                "accuracy = metric(model(x), y)",
                "accuracy = metric(output.detach(), y)",
            ),
        ),
        where=watched.model_where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _unread(profile: Profile) -> float:
    """Such calls a step that other checks report: outputs unread, or another call repeated."""
    seen = flow.of(profile)
    if seen is None:
        return 0.0
    return sum(row.forwards for row in seen.unread) + sum(row.unlearned for row in seen.again)


def _forward_ms(profile: Profile) -> tuple[float, str]:
    computing = [operator for operator in profile.operators if operator.kind in operators.COMPUTING]
    if any(operator.backward for operator in computing):
        took = operators.total(
            profile, [operator for operator in computing if not operator.backward]
        )
        return took, f"forward passes take {units.milliseconds(took)} of the step"
    took = profile.anatomy.part(*operators.COMPUTING) * FORWARD
    return took, (
        f"forward passes are taken to be {units.share(FORWARD)} of computing (a cautious "
        f"constant), {units.milliseconds(took)}"
    )
