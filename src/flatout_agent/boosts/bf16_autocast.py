"""Run the model in bfloat16 where that is safe, and the rest in float32.

## What it does

Runs every call of the model, in training and in evaluation, inside
`torch.autocast(device, torch.bfloat16)`, and casts the outputs back to float32, so the loss is
computed as before. Weights, their gradients and the optimizer's state stay float32: autocast casts
a copy for each matrix multiplication and convolution. On CPUs, `scaled_dot_product_attention` with
dropout, which torch computes in float32, consists of products in bfloat16 as well. On x86 CPUs it
does so without dropout, too, up to eight million weights (with AMX: up to 16 million and 511 keys),
as the backward pass by tiles in bfloat16 takes longer; beyond, it is computed in float32 (with AMX:
up to 255 keys).
Depthwise convolutions with a stride, and some in channels-last, are computed in float32 on x86 CPUs
for the same reason, as are GRU and RNN layers and recurrent cells of few units. `log_softmax` on
CPUs, and `softmax` and `sigmoid` at the end of a model, are computed in float32, as in bfloat16 a
probability of 0.999 is 1, which has no gradient. Functions that do not take bfloat16 beside
float32, such as sparse products, `scatter_add_` or an assignment to a part of a tensor, get
float32, where torch's autocast alone would end the program.

## Why it is faster

Matrix units take bfloat16 at two to sixteen times the float32 rate (Tensor Cores, AMX,
AVX512_BF16), and activations take half the memory and half the bandwidth.

## When it does nothing

- bfloat16 is only emulated here: CPUs without AMX or AVX512_BF16, NVIDIA GPUs before Ampere, MPS
  before macOS 14.
- The script opens its own autocast region, or the model is already in half precision.
- The model is in float64, or all its weights are complex: the script asks for that precision.
- `nn.DataParallel` runs the model or a part of it on several GPUs, where it would be in float16.
- The model has no linear, attention, recurrent or convolution layer.

## What it may change

Factors and products are rounded to 8 significant bits (sums are kept in float32), so gradients
differ from float32's by about a percent: as a rule far below the noise between two batches, which
the Guard checks. bfloat16 has the range of float32, so no loss scaling is needed.

## How it is undone

The layer around the model's call is removed, and torch's own functions for attention, convolutions
and recurrent layers are put back, as are the others that were replaced. The model itself was never
changed: parameters, buffers, hooks and the state dict are always the script's own.

## References

- https://docs.pytorch.org/docs/stable/amp.html
- https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, https://arxiv.org/abs/1905.12322
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flatout_agent.attach.replacing import in_reverse
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.boosts import multiplies, speedup, speedup_of_work
from flatout_agent.speedups.attention import attention, under_autocast
from flatout_agent.speedups.depthwise import depthwise
from flatout_agent.speedups.precision import bf16_call
from flatout_agent.speedups.recurrent import small_recurrences

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, ModelFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("fp16-autocast",),
    rounds_by=2.0**-9,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.bf16 is False:
        return f"bfloat16 would only be emulated on this {facts.device} device"
    if facts.autocast is not None:
        return f"the script opens its own autocast region ({facts.autocast})"
    if facts.scaler:
        return "the script scales its loss for float16 itself"
    reasons = [_why_not(model, multiplies(facts)) for model in facts.models]
    if reasons and all(reasons):
        return reasons[0]
    return None


def _why_not(model: ModelFacts, multiplied: bool) -> str | None:
    dtype = model.dtype.removeprefix("torch.")
    if dtype != "float32":
        return f"{model.kind} is in {dtype}, not in float32"
    if not multiplied:
        return f"{model.kind} has no layer that multiplies matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    measured = speedup(facts, products=2.5, convolutions=2.0, attention=2.0, others=1.1)
    if measured is not None:
        return measured
    full = 1.5 if facts.matmul_precision != "highest" else 1.8
    weights = sum(model.parameters for model in facts.models)
    # Below about a hundred thousand weights the casts cost as much as the products save.
    full = full if weights > 100_000 else 1.0 + (full - 1.0) * 0.2
    return speedup_of_work(facts, full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Put autocast around the model's call."""
    autocast, bf16 = bf16_call(target)
    undo = autocast.around(job, target)
    if bf16.instructions is not None:  # on a CPU
        way = functools.partial(
            under_autocast,
            without_dropout=bf16.instructions in ("AMX", "AVX512_BF16"),
            slow_tiles=bf16.instructions == "AVX512_BF16",
        )
        attention().add(way, first=True)
        undo = in_reverse([undo, lambda: attention().remove(way)])
    if bf16.instructions in ("AMX", "AVX512_BF16"):
        slow = depthwise(), small_recurrences()
        for functions in slow:
            functions.hold()
        undo = in_reverse([undo, *(functions.let_go for functions in slow)])
    return Applied(undo, lambda: autocast.engaged(bf16.detail))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        f'with torch.autocast("{facts.device}", dtype=torch.bfloat16):\n'
        "    output = model(inputs)\n"
        "output = output.float()  # the loss in float32; of several outputs each one\n"
        "# a log_softmax, softmax or sigmoid at the end of the model: better after that line\n"
        "loss = loss_fn(output, targets)\n"
    )
