"""Fused attention falls back to plain matrix products and a softmax.

## What it sees

`scaled_dot_product_attention` that runs `_scaled_dot_product_attention_math`: torch's fallback
where none of its fused kernels supports the inputs.

## Why it matters

The fallback writes the scores (length x length for each head) to memory and keeps them for the
backward pass, as attention by hand does.

## Cure

On a GPU: 16-bit inputs, a head size that is a multiple of 8, no mask that requires gradients, and
`is_causal=True` instead of a causal mask. On a CPU: no dropout inside attention. To learn why a
kernel refuses, call it under `torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`: it
warns.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import attention
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN020", severity=Severity.WARNING, since="0.2.0")
PRODUCTS = r"aten::(bmm|baddbmm)"
SOFTMAX = r"aten::(_softmax|_softmax_backward_data|_safe_softmax)"
BETWEEN = r"aten::(masked_fill_?|mul_?|div_?|bernoulli_?|native_dropout\w*)"
"""Operators of attention between its products.
A layer's other dropouts may share its line, so these count only with the shape of heads.
"""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all attention of the model."""
    math = operators.called(profile, attention.MATH)
    if not math:
        return
    parts = _parts(profile, math)
    took = operators.total(profile, [*math, *parts])
    saved = attention.saved(profile)
    saving = device_time.of_device(
        profile,
        took * saved,
        f"its operators take {units.milliseconds(took)}; a fused kernel is taken to save "
        f"{units.share(saved)} of it (a cautious constant)",
    )
    if not saving.worth:
        return
    yield Diagnosis(
        title=f"scaled_dot_product_attention unfused: {units.milliseconds(took)} of the step",
        evidence=operators.evidence(profile, [*math, *parts]),
        cure=Cure(_advice(profile, math), _lines(profile, math)),
        severity=saving.severity,
        where=operators.where(profile, math),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _parts(profile: Profile, math: list[Operator]) -> list[Operator]:
    """The operators that torch's attention calls, on its lines if known."""
    lines = {operator.where for operator in math if operator.where is not None}
    near = [operator for operator in profile.operators if not lines or operator.where in lines]
    heads = {
        shape[:-2]
        for operator in near
        if operators.matches(SOFTMAX, operator.name)
        for shape in operators.first_inputs(operator)
    }
    return [
        operator
        for operator in near
        if operators.matches(PRODUCTS, operator.name)
        or operators.matches(SOFTMAX, operator.name)
        or (
            operators.matches(BETWEEN, operator.name)
            and operator.shapes
            and all(shape[:-2] in heads for shape in operators.first_inputs(operator))
        )
    ]


def _advice(profile: Profile, math: list[Operator]) -> str:
    if not savings.accelerated(profile):
        return "Leave dropout out of attention: the CPU's fused kernel has none."
    if operators.in_dtype(math, operators.FLOAT32):
        return "Run it in bfloat16 or float16, under autocast: the flash kernels take no float32."
    return "Give it inputs that a fused kernel supports: see the page of this code."


def _lines(profile: Profile, math: list[Operator]) -> tuple[str, ...]:
    place = operators.costliest_place(profile, math)
    call = "y = F.scaled_dot_product_attention(q, k, v, "
    if place is not None and place.source and "scaled_dot_product" not in place.source:
        return ()  # a torch layer calls it with its own arguments
    if not savings.accelerated(profile):
        return savings.lines(place, f"{call}dropout_p=p)", f"{call}dropout_p=0.0)")
    return savings.lines(place, f"{call}attn_mask=mask)", f"{call}is_causal=True)")
