"""Convolutions on the CPU run without oneDNN.

## What it sees

Float convolutions that ran as `_slow_conv2d` (or another of torch's other kernels) on a CPU. Of
single small images torch itself prefers that, and nothing is said.

## Why it matters

oneDNN's convolutions use the processor's vector and matrix instructions in blocks; the reference
kernels unfold the image into a matrix first, several times its size.

## Evidence

The operators that ran, with their time, lines and shapes.

## Cure

Do not turn off `torch.backends.mkldnn` (or use `mkldnn.flags(enabled=False)`), and use a build of
torch with oneDNN: `torch.backends.mkldnn.is_available()`.

## References

- https://docs.pytorch.org/docs/stable/backends.html#torch-backends-mkldnn
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(
    code="KERN018", severity=Severity.WARNING, since="0.2.0", hides=("KERN004", "KERN006")
)
SLOW = r"aten::(_slow_conv2d_(forward|backward)|slow_conv\w*|thnn_conv2d\w*|_nnpack_\w+)"
ONEDNN = r"aten::mkldnn_convolution\w*"
SAVED = 0.5
"""Cautious share of their time saved, if the ceiling or the operations are unknown."""
SMALL = 20480
"""Elements of a single image up to which torch does not use oneDNN."""
REACHED = 0.4
"""Share of the ceiling that oneDNN's convolutions are assumed to reach."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such convolutions."""
    if savings.accelerated(profile):
        return
    slow = operators.called(profile, SLOW)
    if not slow or operators.in_dtype(slow, operators.FLOAT64):
        return  # float64 has no oneDNN: KERN001
    if all(map(_is_small, slow)):
        return  # torch itself prefers its own for these
    if not operators.called(profile, ONEDNN):
        slow += operators.called(profile, r"aten::convolution_backward")
    took = operators.total(profile, slow)
    saved, words = _saved(profile, slow, took)
    saving = device_time.of_device(profile, saved, words)
    if not saving.worth:
        return
    yield Diagnosis(
        title=f"convolutions without oneDNN: {units.milliseconds(took)} of the step",
        evidence=operators.evidence(profile, slow),
        cure=Cure(
            "Leave oneDNN on; it is torch's default.",
            savings.lines(
                None,
                "torch.backends.mkldnn.enabled = False",
                "torch.backends.mkldnn.enabled = True",
            ),
        ),
        severity=saving.severity,
        where=operators.where(profile, slow),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _is_small(convolution: Operator) -> bool:
    """Whether all its inputs, or their gradients, are single small images."""
    images = operators.first_inputs(convolution)
    return bool(images) and all(
        len(image) == 4 and image[0] == 1 and operators.elements(image) <= SMALL for image in images
    )


def _saved(profile: Profile, slow: list[Operator], took: float) -> tuple[float, str]:
    ceiling = profile.ceiling("conv-cpu-nchw-fp32") or profile.ceiling("matmul-cpu-fp32")
    flops = sum(operator.flops or 0.0 for operator in slow)
    if not ceiling or not flops or any(operator.flops is None for operator in slow):
        return took * SAVED, (
            f"they take {units.milliseconds(took)}; oneDNN is taken to save {units.share(SAVED)} "
            "(a cautious constant)"
        )
    needed = flops / (ceiling * 1e12 * REACHED) * 1e3
    return max(took - needed, 0.0), (
        f"{flops / 1e9:.3g} GFLOP at {units.share(REACHED)} of {ceiling:.3g} TFLOP/s take "
        f"{units.milliseconds(needed)}, now {units.milliseconds(took)}"
    )
