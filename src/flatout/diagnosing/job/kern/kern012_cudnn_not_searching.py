"""cuDNN picks convolution kernels by heuristics, although all inputs have one shape.

## What it sees

2-d convolutions on an NVIDIA GPU, one input shape throughout, and `cudnn.benchmark` off.

## Why it matters

With it on, cuDNN measures its kernels once for each shape and keeps the fastest; off, it guesses.

## Cure

`torch.backends.cudnn.benchmark = True` before training, or the boost cudnn-benchmark. The first
step of each new shape takes longer.

## References

- https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN012", severity=Severity.WARNING, since="0.2.0")
SAVED = 0.08
"""Cautious share of the convolutions' time saved; observed: between nothing and a third."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all convolutions."""
    job, watched = profile.job, profile.seen
    if job is None or watched is None or not operators.on_nvidia(profile):
        return
    fixed = watched.input_shapes == 1 and all(len(model.input_shapes) <= 1 for model in job.models)
    if job.cudnn_benchmark or job.deterministic or watched.deterministic or not fixed:
        return
    convolutions = operators.called(profile, operators.CONVOLVES)
    took = operators.total(profile, convolutions)
    saving = device_time.of_device(
        profile,
        took * SAVED,
        f"convolutions take {units.milliseconds(took)} of the step; searching is taken to save "
        f"{units.share(SAVED)} of it (a cautious constant)",
    )
    if not saving.worth or not operators.has_convolutions(profile):
        return
    yield Diagnosis(
        title=f"cudnn.benchmark is off: {units.milliseconds(took)} of convolutions, one shape",
        evidence=operators.evidence(profile, convolutions),
        cure=Cure(
            "Let cuDNN measure its kernels once.",
            savings.lines(None, "", "torch.backends.cudnn.benchmark = True"),
        ),
        severity=saving.severity,
        where=operators.where(profile, convolutions),
        boost=savings.boost(profile, "cudnn-benchmark"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
