"""Evaluation records graphs for a backward pass that never happens.

## What it sees

Calls of the model in evaluation mode with gradients on, without a backward pass.

## Why it matters

Every operator records a node and keeps its inputs: time for each, and the memory of all
activations at once, so that evaluation batches must be smaller than they could be.

## Cure

`with torch.inference_mode():` (or `torch.no_grad()`) around the evaluation.

## References

- https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP006", severity=Severity.WARNING, since="0.2.0")
SAVED = 0.15
"""Cautious share of the evaluation's time saved; observed: between a tenth and a third."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the evaluation."""
    if profile.job is None or not profile.job.eval_with_grad:
        return
    watched = profile.seen
    took = watched.eval_s * 1000 if watched is not None else 0.0
    saved = savings.beside(profile, took * SAVED)
    worth = savings.worth(profile, saved)
    where = watched.eval_where if watched is not None else None
    yield Diagnosis(
        title="evaluation runs with gradients on",
        evidence="the model was called in evaluation mode with gradients, and no backward followed"
        + (f"; evaluation takes {units.milliseconds(took)} for each step" if took > 0 else ""),
        cure=Cure(
            "Evaluate without recording.",
            savings.lines(where, "", "with torch.inference_mode():", "    output = model(x)"),
        ),
        where=where,
        saves_ms=saved if worth else None,
        reason=f"evaluation takes {units.milliseconds(took)} for each step beside it; without "
        f"gradients it is taken to save {units.share(SAVED)} of that (a cautious constant)"
        if worth
        else "",
    )
