"""A large part of the time goes into evaluation in the middle of an epoch.

## What it sees

Evaluation between the steps of the first epoch, not at its end, and a quarter of the time
or more spent in it.

## Why it matters

Evaluating every few steps shows little more than every few hundred, and training waits meanwhile.

## Evidence

What evaluation takes for each training step, beside the step, and its line.

## Cure

Evaluate once an epoch, or less often, or on a part of the data.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://github.com/google-research/tuning_playbook#evaluating-model-performance
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP007", severity=Severity.WARNING, since="0.2.0")
SHARE = 0.25
"""Of all time."""
ENOUGH = 0.05
"""Of the steps' time: what evaluation may take."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    watched = profile.seen
    if watched is None or watched.eval_s <= 0 or watched.epochs > 1:
        return
    step, took = profile.anatomy.step_ms, watched.eval_s * 1000
    if step <= 0 or took < SHARE * (step + took):
        return
    saved = savings.beside(profile, took - ENOUGH * step)
    yield Diagnosis(
        title=f"evaluation takes {units.share(took / (step + took))} of the time",
        evidence=f"{units.milliseconds(took)} for each step of {units.milliseconds(step)}, in the "
        "middle of an epoch",
        cure=Cure(
            "Evaluate less often.",
            savings.lines(
                watched.eval_where,
                "evaluate(model)",
                "if step % 1000 == 0:",
                "    evaluate(model)",
            ),
        ),
        where=watched.eval_where,
        saves_ms=saved,
        reason=f"evaluation takes {units.milliseconds(took)} for each step beside it; at "
        f"{units.share(ENOUGH)} of the step {units.milliseconds(ENOUGH * step)}",
    )
