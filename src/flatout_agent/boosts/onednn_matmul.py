"""Let oneDNN multiply float32 matrices instead of MKL, where MKL leaves AVX-512 unused.

## What it does

Sets `torch.set_float32_matmul_precision("medium")` on a CPU where that changes no precision: torch
then hands float32 products (`nn.Linear`, `matmul`, `bmm`, their gradients) to oneDNN, which *may*
round factors to bfloat16 and does so only where the CPU has AMX. Without AMX it multiplies in
float32, with all of AVX-512. First a few products are computed both ways, and the setting is
reverted unless their error is that of float32.

## Why it is faster

On AMD CPUs, MKL uses its AVX2 kernels even where the CPU has AVX-512. Measured on an AMD EPYC (Zen
5) with torch 2.13, one core: 90 GFLOP/s by MKL, 190 by oneDNN, for products from 64 x 512 x 512 on;
a training step of an MLP with three layers of 1,024 took 0.62 of the time, of transformers of width
256 and 512 0.64 to 0.70.

## When it does nothing

- The CPU has AMX or is not x86 (there the setting rounds: that is cpu-bf16), or has no AVX-512.
- torch computes the same bits as before, so oneDNN was not used or MKL does the same.
- The script sets the matmul precision itself: the script's setting wins.
- The model is not in float32, or multiplies no matrices.

Small products lose: oneDNN takes some 15 microseconds more to start one, which below about 64 x 256
x 256 is more than it saves (an MLP with layers of 64 took 1.5 times as long). Input shapes that
change from batch to batch cost some more, since oneDNN prepares each shape once.

## What it may change

Sums are taken in another order: the last bits differ. `torch.get_float32_matmul_precision()` says
"medium", and a compiled model is compiled once more. A model that moves to a GPU later would take
TF32 there.

## How it is undone

The precision goes back to what it was.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
- https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html
- https://github.com/pytorch/builder/issues/504
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.boosts import NO_SHARE, speedup, speedup_of_work
from flatout_agent.speedups.float_math import onednn_products
from flatout_agent.speedups.precision import native_bf16, why_not_float32

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    switch=Switch.STEP,
    conflicts=("cpu-bf16",),
    covered_by=("bf16-autocast",),
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, not on the CPU"
    if facts.bf16_inside_float32:
        return "oneDNN would round factors to bfloat16 on this CPU"
    if facts.matmul_precision != "highest":
        return f"the script sets the matmul precision itself ({facts.matmul_precision})"
    if facts.autocast is not None:
        return f"the script opens its own autocast region ({facts.autocast})"
    if facts.models and all(model.dtype != "float32" for model in facts.models):
        return f"the model is in {facts.models[0].dtype}, not in float32"
    products = facts.shares.get("products", 0.0) > NO_SHARE
    if facts.models and not products and not any(model.matmul for model in facts.models):
        return "the model has no layer that multiplies matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: products must be large enough to repay the cost of starting them."""
    weights = sum(model.parameters for model in facts.models)
    full = 1.3 if weights > 300_000 else 1.01
    if facts.shares and weights > 300_000:
        return speedup(facts, products=1.5) or 1.0
    return speedup_of_work(facts, full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Set the precision setting if results keep float32 precision."""
    device = next((str(parameter.device.type) for parameter in target.parameters()), "cpu")
    if device != "cpu":
        raise Declined(f"the model is on {device}, not on the CPU")
    reason = why_not_float32(target) or _why_not_here()
    if reason is not None:
        raise Declined(reason)
    products = onednn_products()
    products.hold()
    return Applied(products.let_go, products.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "# on an x86 CPU with AVX-512 and without AMX, where float32 products stay float32\n"
        'torch.set_float32_matmul_precision("medium")\n'
    )


def _why_not_here() -> str | None:
    """Why this CPU is ruled out before anything is tried."""
    import torch

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "the CPU is not x86: oneDNN would round factors to bfloat16"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch was built without oneDNN"
    if torch.cuda.is_available():
        return "the setting also applies to the GPU, and would let it round factors to TF32"
    if native_bf16("cpu").instructions == "AMX":
        return "the CPU has AMX: oneDNN would round factors to bfloat16"
    return None
