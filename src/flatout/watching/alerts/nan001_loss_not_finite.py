"""The loss is NaN or infinite, or a gradient scaler skips too many updates.

## What it sees

Two losses in a row that are not finite. Or, with a gradient scaler, 20% of the last 200 steps
skipped, or a scale below 1/256 of its first value. A scaler finds its scale by skipping single
steps; these raise no alert.

## Why it matters

From the first NaN on, every weight is NaN: the rest of the run is lost, as is every checkpoint that
it writes.

## Cure

Go back to the last checkpoint before that step. Lower the learning rate or clip the gradients; in
float16 use bfloat16 or a scaler; `torch.autograd.set_detect_anomaly(True)` names the operator.

## References

- https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection
- https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.job_sample import PulseStep
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, RankHistory, Rule, View
from flatout_agent.wire import pulse

RULE = Rule(code="NAN001", severity=Severity.ERROR, since="0.2.0")
IN_A_ROW = 2
WINDOW = 200
SKIPPED_SHARE = 0.2
LOWER_SHARE = 0.1
LEAST_SCALE, UPPER_SCALE = 1 / 256, 1 / 128
"""As a share of the first scale."""
CURE = Cure(
    "Go back to the last checkpoint before, and lower the learning rate or clip the gradients. "
    "torch.autograd.set_detect_anomaly(True) names the operator.",
)


def check(view: View) -> Iterator[Breach]:
    """One breach for each rank whose loss is lost or whose scaler finds no scale."""
    job = _windows.runs(view.job)
    for rank in job.ranks if job is not None else ():
        yield from _losses(rank, len(job.ranks) if job is not None else 1)
        yield from _scaler(rank)


def _losses(rank: RankHistory, ranks: int) -> Iterator[Breach]:
    bad: list[PulseStep] = []
    last: PulseStep | None = None
    for step in islice(reversed(rank.steps), 2000):
        if step.loss is None:
            continue
        if math.isfinite(step.loss):
            last = step
            break
        bad.append(step)
    if len(bad) < IN_A_ROW:
        return
    first = bad[-1]
    word = "NaN" if math.isnan(first.loss or 0.0) else "infinite"
    before = f"; {last.loss:.4g} at step {last.step}" if last is not None else ""
    since = f"since step {first.step}" + (" or longer" if last is None and first.step > 1 else "")
    yield Breach(
        title=f"the loss is {word} {since}",
        evidence=f"{len(bad)} losses in a row are not finite{before}",
        cure=CURE,
        subject=f"rank {rank.rank}" if ranks > 1 else "",
        since_s=first.time_s,
    )


def _scaler(rank: RankHistory) -> Iterator[Breach]:
    window = list(islice(reversed(rank.steps), WINDOW))
    share = sum(bool(step.flags & pulse.SKIPPED) for step in window) / WINDOW
    scale = next((step.loss_scale for step in window if step.loss_scale is not None), None)
    first = rank.first_step_scale
    left = scale / first if scale is not None and first else 1.0
    if len(window) < WINDOW or (share < LOWER_SHARE and not left < UPPER_SCALE):
        return
    now = f"; its scale fell from {first:.4g} to {scale:.4g}" if left < UPPER_SCALE else ""
    yield Breach(
        title="the gradient scaler leaves out too many updates",
        evidence=f"{share:.0%} of the last {WINDOW} steps have gradients that are not finite{now}",
        cure=Cure("Use bfloat16, which needs no scaler, or look for the layer that overflows."),
        subject=f"scaler of rank {rank.rank}",
        fires=share >= SKIPPED_SHARE or left < LEAST_SCALE,
    )
