"""The logits of a large vocabulary are in float32: the largest tensor of the step.

## What it sees

A softmax or cross entropy over 8192 classes or more, whose float32 input is a large share of the
memory in use.

## Why it matters

Logits are batch x length x vocabulary: 8 x 1024 x 50257 in float32 are 1.5 GiB, and the softmax,
its gradient and a float copy each take as much again. They set the peak of memory, and each of
these operators is limited by bandwidth.

## Cure

Compute the loss in pieces along the length, compile the loss (`torch.compile` fuses the float
copy into the softmax), or use a fused linear cross entropy.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
- https://arxiv.org/abs/2411.09009
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="MEM007", severity=Severity.NOTE, since="0.2.0")
SOFTMAX = r"aten::(_?log_softmax|_?softmax|_(log_)?softmax_backward_data|nll_loss\w*)"
VOCABULARY = 8192
SHARE = 0.08
"""Share of the memory in use that one such tensor takes."""
SAVED = 0.4
"""Cautious share of these operators' time that fusing saves."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loss."""
    peak = profile.seen.memory_peak_bytes if profile.seen is not None else None
    if not peak:
        return
    softmaxes = operators.in_dtype(operators.called(profile, SOFTMAX), operators.FLOAT32)
    large = [operator for operator in softmaxes if _bytes(operator)]
    largest_bytes = max((_bytes(operator) for operator in large), default=0)
    if largest_bytes < SHARE * peak:
        return
    took = operators.total(profile, large)
    saving = device_time.of_device(
        profile,
        took * SAVED,
        f"softmax and loss over the logits take {units.milliseconds(took)}; fused they are taken "
        f"to save {units.share(SAVED)} of it (a cautious constant)",
    )
    place = operators.where(
        profile, [operator for operator in large if not operator.backward] or large
    )
    yield Diagnosis(
        title=f"logits in float32: {units.size(largest_bytes)} for each copy of them",
        evidence=f"{operators.evidence(profile, large)}; {device_memory.evidence(profile)}",
        cure=Cure(
            "Compute the loss in pieces, or compile it: no whole float32 copy is made then.",
            savings.lines(
                place,
                "loss = F.cross_entropy(logits.float(), targets)",
                "loss = torch.compile(F.cross_entropy)(logits, targets)",
            ),
        ),
        severity=saving.severity if saving.worth else None,
        where=place,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _bytes(operator: Operator) -> int:
    """Bytes in float32 of its costliest input with that many classes."""
    sizes = (
        operators.elements(tensor) * 4
        for tensor in operators.inputs(operator)
        if len(tensor) >= 2 and tensor[-1] >= VOCABULARY
    )
    return max(sizes, default=0)
