"""cuDNN measures its convolution kernels again and again, since input shapes change.

## What it sees

`cudnn.benchmark` is on, the model has convolutions, and its input came in several shapes while
the job was watched.

## Why it matters

cuDNN runs all its kernels for each shape that it has not seen, several hundred milliseconds for
each convolution, and keeps the memory that they need. With shapes that keep changing it never
ends.

## Cure

Turn it off, or pad to a few shapes.

## References

- https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN013", severity=Severity.WARNING, since="0.2.0", hides=("KERN012",))
MANY = 4
"""Shapes beyond which each hardly recurs; the boost cudnn-benchmark has the same limit."""
LAUNCH_MS = 0.1
"""Generous host time for one convolution whose kernel is known."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all convolutions."""
    job, watched = profile.job, profile.seen
    if (
        job is None
        or watched is None
        or not job.cudnn_benchmark
        or not operators.on_nvidia(profile)
    ):
        return
    if watched.input_shapes <= MANY or not operators.has_convolutions(profile):
        return
    convolutions = operators.called(profile, operators.CONVOLVES)
    searching = sum(
        max(operator.host_ms - LAUNCH_MS * operator.calls, 0.0) for operator in convolutions
    )
    saving = device_time.of_step(
        profile,
        searching,
        f"the host spends {units.milliseconds(searching)} a step in convolutions beyond "
        f"{LAUNCH_MS} ms for launching each",
    )
    yield Diagnosis(
        title=f"cudnn.benchmark is on with {watched.input_shapes} input shapes",
        evidence=f"{watched.input_shapes} shapes of the model's first input were seen"
        + (f"; {operators.evidence(profile, convolutions)}" if convolutions else ""),
        cure=Cure(
            "Turn it off, or pad the inputs to a few shapes.",
            savings.lines(
                None,
                "torch.backends.cudnn.benchmark = True",
                "torch.backends.cudnn.benchmark = False",
            ),
        ),
        severity=saving.severity,
        where=watched.model_where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
