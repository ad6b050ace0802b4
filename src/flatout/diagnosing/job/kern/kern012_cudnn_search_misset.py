"""cuDNN's search for convolution kernels does not fit the shapes: off for one, on for many.

## What it sees

A model with convolutions on an NVIDIA GPU, and `cudnn.benchmark` off although all inputs have one
shape, or on although they came in more than a few shapes while the job was watched.

## Why it matters

With it on, cuDNN measures its kernels once for each shape and keeps the fastest; off, it guesses.
Measuring takes several hundred milliseconds for each convolution and new shape, and keeps the
memory that the kernels need. With shapes that keep changing it never ends.

## Cure

For one shape `torch.backends.cudnn.benchmark = True` before training, or the boost cudnn-benchmark.
For many shapes turn it off, or pad to a few.

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
from flatout_agent.wire import JobFacts, LoopSeen

CHECK = Check(code="KERN012", severity=Severity.WARNING, since="0.2.0")
SAVED = 0.08
"""Cautious share of the convolutions' time saved; observed: between nothing and a third."""
MANY = 4
"""Shapes beyond which each hardly recurs; the boost cudnn-benchmark has the same limit."""
LAUNCH_MS = 0.1
"""Generous host time for one convolution whose kernel is known."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all convolutions."""
    job, watched = profile.job, profile.seen
    if job is None or watched is None or not operators.on_nvidia(profile):
        return
    if not operators.has_convolutions(profile):
        return
    if job.cudnn_benchmark:
        yield from _searching_again(profile, watched)
    else:
        yield from _not_searching(profile, job, watched)


def _not_searching(profile: Profile, job: JobFacts, watched: LoopSeen) -> Iterator[Diagnosis]:
    fixed = watched.input_shapes == 1 and all(len(model.input_shapes) <= 1 for model in job.models)
    if job.deterministic or watched.deterministic or not fixed:
        return
    convolutions = operators.called(profile, operators.CONVOLVES)
    took = operators.total(profile, convolutions)
    saving = device_time.of_device(
        profile,
        took * SAVED,
        f"convolutions take {units.milliseconds(took)} of the step; searching is taken to save "
        f"{units.share(SAVED)} of it (a cautious constant)",
    )
    if not saving.worth:
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


def _searching_again(profile: Profile, watched: LoopSeen) -> Iterator[Diagnosis]:
    if watched.input_shapes <= MANY:
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
