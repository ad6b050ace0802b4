"""Float32 matrix products run without TensorFloat-32 on a GPU that has it.

## What it sees

Matrix products with float32 inputs that run off the tensor cores, on an NVIDIA GPU of compute
capability 8.0 or newer, while the matmul precision is torch's default ("highest").

## Why it matters

Tensor cores multiply TF32 at up to eight times the rate of float32 units. Inputs and outputs stay
float32; the factors are rounded to 11 significant bits inside the product.

## Cure

One line before training: `torch.set_float32_matmul_precision("high")`, or the boost tf32.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
- https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import products
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="KERN002", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such products."""
    capability = operators.capability(profile)
    if capability is None or capability < (8, 0):
        return
    if profile.job is not None and profile.job.matmul_precision != "highest":
        return
    multiplied = [
        operator
        for operator in operators.products(profile)
        if operator.kind is Kind.MATMUL and not operators.CONVOLVES.fullmatch(operator.name)
    ]
    slow = operators.in_dtype(multiplied, operators.FLOAT32)
    gain = products.faster(profile, slow, "fp32", "tf32")
    saving = device_time.of_device(profile, gain.saves_ms, gain.words)
    if not saving.worth:
        return
    took = units.milliseconds(operators.total(profile, slow))
    yield Diagnosis(
        title=f"float32 products off the tensor cores: {took} of the step",
        evidence=f"{operators.evidence(profile, slow)}; torch.get_float32_matmul_precision() is "
        f'"highest", compute capability {capability[0]}.{capability[1]}'
        if profile.job is not None
        else operators.evidence(profile, slow),
        cure=Cure(
            "Allow TF32 for float32 products, once, before training.",
            savings.lines(None, "", 'torch.set_float32_matmul_precision("high")'),
        ),
        severity=saving.severity,
        where=operators.where(profile, slow),
        boost=savings.boost(profile, "tf32"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
