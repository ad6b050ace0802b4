"""The model trains in float32 without autocast on a GPU with 16-bit tensor cores.

## What it sees

Matrix products and convolutions with float32 inputs, no autocast region around the model, and a
GPU with tensor cores for bfloat16 (float16 before Ampere).

## Why it matters

In 16 bits tensor cores give two to sixteen times the rate of float32 units, and twice that of TF32;
activations take half the memory and half the bandwidth: fused attention gains as products do, and
elementwise kernels a half at most. Autocast casts the weights in each forward pass, which the host
must launch: where launching binds, the gain ends there.

## Cure

`torch.autocast` around the model's call and the loss; with float16 also a GradScaler. Or the boost
bf16-autocast. TF32 (KERN002) gets a part of the same gain; the two do not add up.

## References

- https://docs.pytorch.org/docs/stable/amp.html
- https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import products
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN003", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all products in float32."""
    half = _half(profile)
    if half is None or _already(profile):
        return
    multiplied = [*operators.products(profile), *operators.of_kind(profile, Kind.ATTENTION)]
    slow = operators.in_dtype(multiplied, operators.FLOAT32)
    if not slow:
        return
    cores = [operator for operator in slow if operator.kind is Kind.TENSOR_CORES]
    plain = [operator for operator in slow if operator.kind is not Kind.TENSOR_CORES]
    gains = [
        products.faster(profile, plain, "fp32", half),
        products.faster(profile, cores, "tf32", half),
        products.between(profile, half),
    ]
    words = "; ".join(gain.words for gain in gains if gain.words)
    saving = device_time.of_device(profile, sum(gain.saves_ms for gain in gains), words)
    if not saving.worth:
        return
    took = units.milliseconds(operators.total(profile, slow))
    name = "bfloat16" if half == "bf16" else "float16"
    yield Diagnosis(
        title=f"no autocast: {took} of products in float32; tensor cores support {name}",
        evidence=operators.evidence(profile, slow),
        cure=Cure(
            f"Run the model and the loss in {name}; weights and optimizer stay float32.",
            _lines(profile, name),
        ),
        severity=saving.severity,
        where=_where(profile, slow),
        boost=savings.boost(profile, "bf16-autocast", "fp16-autocast"),
        saves_ms=saving.ms,
        reason=saving.reason,
        adds_host_ms=products.casts_host_ms(profile, slow),
    )


def _half(profile: Profile) -> str | None:
    """The 16-bit dtype that this GPU's matrix units take, or None if none is known."""
    job = profile.job
    if job is not None and job.hip:
        return "bf16" if job.bf16 else None
    capability = operators.capability(profile)
    if capability is None or capability < (7, 0):
        return None
    return "bf16" if capability >= (8, 0) else "fp16"


def _already(profile: Profile) -> bool:
    if profile.job is not None and (profile.job.autocast is not None or profile.job.scaler):
        return True
    return any(
        dtype in operators.HALVES
        for operator in operators.products(profile)
        for dtype in operator.dtypes
    )


def _where(profile: Profile, slow: list[Operator]) -> str | None:
    model_line = profile.seen.model_where if profile.seen is not None else None
    return model_line or operators.where(profile, slow)


def _lines(profile: Profile, name: str) -> tuple[str, ...]:
    where = profile.seen.model_where if profile.seen is not None else None
    context = f'with torch.autocast("cuda", dtype=torch.{name}):'
    lines = savings.lines(where, "loss = loss_fn(model(x), y)", context)
    lines += ("+     loss = loss_fn(model(x), y)",)
    if name == "float16":
        lines += ("- loss.backward(); optimizer.step()", "+ scaler.scale(loss).backward()")
        lines += ("+ scaler.step(optimizer)", "+ scaler.update()  # torch.amp.GradScaler()")
    return lines
