"""A large part of the time goes into evaluation in the middle of an epoch.

## What it sees

Evaluation between the steps of the first epoch, not at its end, and a quarter of the time or more
spent in it; a tenth where it returns after 20 steps or fewer. What it takes is counted over the
steps from one to the next. Calls of a model that is not trained, a teacher or a target network, do
not count.

## Why it matters

Evaluating every few steps shows little more than every few hundred, and training waits meanwhile.

## Evidence

What evaluation takes for each training step, beside the step, after how many steps it returns, and
the line of the training loop that calls it.

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
from flatout_agent.wire import LoopSeen

CHECK = Check(code="LOOP007", severity=Severity.WARNING, since="0.2.0")
SHARE = 0.25
"""Of all time."""
OFTEN_SHARE = 0.10
"""Of all time, where it returns often."""
OFTEN = 20
"""Steps between two evaluations that show hardly anything new."""
ENOUGH = 0.05
"""Of the steps' time: what evaluation may take."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    watched = profile.seen
    if watched is None or watched.eval_s <= 0 or watched.epochs > 1 or not watched.eval_trained:
        return
    step, took = profile.anatomy.step_ms, watched.eval_s * 1000
    often = watched.eval_every is not None and watched.eval_every <= OFTEN
    if step <= 0 or took < (OFTEN_SHARE if often else SHARE) * (step + took):
        return
    saved = savings.beside(profile, took - ENOUGH * step)
    where = watched.eval_called or watched.eval_where
    yield Diagnosis(
        title=f"evaluation{_after(watched)} takes {units.share(took / (step + took))} of the time",
        evidence=f"{units.milliseconds(took)} for each step of {units.milliseconds(step)}, in the "
        f"middle of an epoch{_model_called(watched, where)}",
        cure=Cure(
            "Evaluate less often.",
            savings.lines(where, "evaluate(model)", "if step % 1000 == 0:", "    evaluate(model)"),
        ),
        where=where,
        saves_ms=saved,
        reason=f"evaluation takes {units.milliseconds(took)} for each step beside it; at "
        f"{units.share(ENOUGH)} of the step {units.milliseconds(ENOUGH * step)}",
    )


def _after(watched: LoopSeen) -> str:
    if watched.eval_every is None:
        return ""
    every = round(watched.eval_every)
    return f" after every {units.count(every, 'step')}" if every > 1 else " after every step"


def _model_called(watched: LoopSeen, where: str | None) -> str:
    if watched.eval_where in (None, where):
        return ""
    return f"; the model is called at {watched.eval_where}"
