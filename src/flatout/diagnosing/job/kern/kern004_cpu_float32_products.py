"""A CPU with native bfloat16 multiplies in float32.

## What it sees

Matrix products and convolutions with float32 inputs on a CPU with AMX or AVX512_BF16 (Arm: BF16),
without an autocast region, and with the default matmul precision.

## Why it matters

AMX multiplies bfloat16 at up to sixteen times the rate of float32, AVX512_BF16 at twice, and half
the bytes move. bfloat16 has float32's range: no loss scaling is needed.

## Cure

`torch.autocast("cpu", dtype=torch.bfloat16)` around the model's call: the boost bf16-autocast. If
the CPU has AMX, the boost cpu-bf16 rounds only inside the products.

## References

- https://docs.pytorch.org/docs/stable/amp.html
- https://docs.pytorch.org/tutorials/recipes/amx.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import products
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN004", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all products in float32."""
    job = profile.job
    if job is None or job.device != "cpu" or not job.bf16 or job.autocast is not None:
        return
    if job.matmul_precision != "highest":
        return
    slow = operators.in_dtype(operators.products(profile), operators.FLOAT32)
    gain = products.faster(profile, slow, "fp32", "bf16")
    saving = device_time.of_device(profile, gain.saves_ms, gain.words)
    if not saving.worth:
        return
    took = units.milliseconds(operators.total(profile, slow))
    model = profile.seen.model_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"{took} of products in float32, and this CPU has native bfloat16",
        evidence=operators.evidence(profile, slow),
        cure=Cure(
            "Run the model in bfloat16; weights, loss and optimizer stay float32.",
            savings.lines(
                model,
                "output = model(x)",
                'with torch.autocast("cpu", dtype=torch.bfloat16):',
                "    output = model(x)",
            ),
        ),
        severity=saving.severity,
        where=model or operators.where(profile, slow),
        boost=savings.boost(profile, "bf16-autocast", "cpu-bf16"),
        saves_ms=saving.ms,
        reason=saving.reason,
        uncertainty=gain.uncertainty,
    )
