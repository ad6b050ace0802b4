"""The gradient scaler of float16 waits for the device in each step.

## What it sees

`scaler.step(optimizer)` reads from the device whether a gradient was infinite, in each step, and
the device idles after it.

## Why it matters

Whether the optimizer may step is decided on the host, so the host waits for the whole backward
pass. bfloat16 has float32's range and needs no scaler; fused optimizers decide on the device.

## Cure

autocast to bfloat16 without a scaler, if the device has it; else `fused=True` in the optimizer. The
gain: the idle time.

## References

- https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
- https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC010", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    native = profile.job.bf16 if profile.job is not None else None

    def cure(sync: Sync) -> Cure:
        source = sync.where.source if sync.where is not None else ""
        if native:
            return Cure(
                "Use bfloat16, which needs no scaler.",
                (
                    *savings.lines(sync.where, source, "optimizer.step()"),
                    '+ with torch.autocast("cuda", dtype=torch.bfloat16):  # around the forward',
                ),
            )
        return Cure(
            "Let a fused optimizer decide on the device: fused=True.",
            savings.lines(
                "where the optimizer is made", "", "torch.optim.AdamW(parameters, ..., fused=True)"
            ),
        )

    yield from stalls.diagnoses(
        profile,
        stalls.Stall.SCALER,
        lambda _: "the gradient scaler waits for the device in each step",
        cure,
        "fused-optimizer",
    )
