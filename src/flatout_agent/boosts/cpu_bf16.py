"""Let oneDNN multiply float32 matrices in bfloat16 on the CPU.

## What it does

Sets oneDNN's float-math mode: `torch.set_float32_matmul_precision("medium")`, and from torch 2.9 on
`torch.backends.mkldnn.conv.fp32_precision = "bf16"`. Tensors stay float32; inside a matrix
multiplication or convolution oneDNN may round them to bfloat16.

## Why it is faster

AMX and Arm's matrix instructions multiply bfloat16 several times faster than float32, and unlike
with autocast no tensor is cast in Python.

## When it does nothing

- oneDNN accepts the mode but keeps computing in float32: on x86 the mode takes effect with AMX
only.
- The script sets the matmul precision itself: the script's setting wins.
- bf16-autocast is on: its products are in bfloat16 already.

## What it may change

Factors are rounded to 8 significant bits; sums, activations and weights stay float32.

## How it is undone

The two settings go back to what they were.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
- https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.boosts import multiplies, speedup, speedup_of_work
from flatout_agent.speedups.float_math import NO_KERNELS, multiply_in_bf16, rounding_error

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.ROUNDING,
    moment=Moment.START,
    conflicts=("bf16-autocast",),
    rounds_by=2.0**-9,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, not on the CPU"
    if facts.bf16 is False:
        return "bfloat16 would only be emulated on this CPU"
    if facts.bf16_inside_float32 is False:
        return NO_KERNELS
    if facts.matmul_precision != "highest":
        return f"the script sets the matmul precision itself ({facts.matmul_precision})"
    if facts.autocast is not None:
        return f"the script opens its own autocast region ({facts.autocast})"
    if facts.models and all(model.dtype != "float32" for model in facts.models):
        return f"the model is in {facts.models[0].dtype}, not in float32"
    if facts.models and not multiplies(facts):
        return "the model has no layer that multiplies matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    measured = speedup(facts, products=2.0, convolutions=1.5)
    return measured or speedup_of_work(facts, 1.4)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Set the float-math mode."""
    undo, detail = multiply_in_bf16()
    return Applied(undo, lambda: _engaged(detail))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        'torch.set_float32_matmul_precision("medium")\n'
        'torch.backends.mkldnn.conv.fp32_precision = "bf16"  # torch 2.9 or newer\n'
    )


def _engaged(detail: str) -> tuple[bool, str]:
    import torch

    if torch.get_float32_matmul_precision() != "medium":
        return False, "the script set the matmul precision itself"
    error = rounding_error()
    if error < 1e-4:
        return False, f"oneDNN accepted the mode and kept float32 (relative error {error:.0e})"
    return True, f"{detail}, relative error of a product {error:.0e}"
