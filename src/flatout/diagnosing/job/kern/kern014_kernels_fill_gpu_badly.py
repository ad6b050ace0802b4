"""Long kernels leave most of the GPU's multiprocessors without work.

## What it sees

Kernels other than matrix products, attention and communication (which need few threads by design)
that take a share of the step and keep less than a fifth of the GPU's threads busy, by the driver's
estimate: too few blocks for all multiprocessors, or a last wave of blocks that fills only some (the
tail effect).

## Why it matters

A GPU hides the latency of its memory behind other threads. A kernel with few of them runs at a
fraction of the bandwidth, and takes nearly as long for four times the work.

## Evidence

The kernels with their time, their share of threads and the operator that launched them.

## Cure

More work for each launch: a larger batch, or several small tensors in one operator;
`torch.compile` fuses and chooses other blocks.

## References

- https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Kernel, Profile

CHECK = Check(code="KERN014", severity=Severity.NOTE, since="0.2.0")
FULL = 0.4
"""Share of threads from which bandwidth, not latency, is usually the limit."""
LOW = 0.2
LONG_MS = 0.02
"""A shorter kernel is limited by its launch, however many threads it has."""
NEED_FEW = (
    Kind.TENSOR_CORES,
    Kind.MATMUL,
    Kind.ATTENTION,
    Kind.COMMUNICATION,
    Kind.COPY,
)
BELIEVED = 0.5
"""Cautious share of the difference that more threads recover."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such kernels."""
    if not savings.accelerated(profile):
        return
    low = [kernel for kernel in profile.kernels if _low(kernel)]
    took = sum(kernel.ms for kernel in low)
    saved = sum(kernel.ms * (1 - (kernel.occupancy or 0.0) / FULL) for kernel in low) * BELIEVED
    saving = device_time.of_device(
        profile,
        saved,
        f"these kernels take {units.milliseconds(took)}; at {units.share(FULL)} of the threads "
        f"they would take {units.milliseconds(took - saved / BELIEVED)}, of which "
        f"{units.share(BELIEVED)} is believed",
    )
    if not saving.worth:
        return
    low.sort(key=lambda kernel: -kernel.ms)
    yield Diagnosis(
        title=f"{units.milliseconds(took)} in kernels that fill less than {units.share(LOW)} of "
        "the GPU",
        evidence="; ".join(_facts(kernel) for kernel in low[:3]),
        cure=Cure(
            "Give each launch more work: a larger batch, or compile the model.",
            savings.lines(None, "", "model = torch.compile(model)"),
        ),
        where=next((str(kernel.where) for kernel in low if kernel.where is not None), None),
        boost=savings.boost(profile, "compile", "batch-size"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _low(kernel: Kernel) -> bool:
    return (
        kernel.kind not in NEED_FEW
        and kernel.occupancy is not None
        and 0 < kernel.occupancy < LOW
        and kernel.calls > 0
        and kernel.ms / kernel.calls >= LONG_MS
    )


def _facts(kernel: Kernel) -> str:
    origin = f" of {kernel.operator}" if kernel.operator else ""
    name = kernel.name if len(kernel.name) <= 60 else f"{kernel.name[:57]}..."
    return f"{name}{origin}: {units.milliseconds(kernel.ms)} at {units.share(kernel.occupancy)}"
