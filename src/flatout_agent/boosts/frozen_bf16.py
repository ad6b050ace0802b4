"""Run models that the program calls in each step without training them in bfloat16.

## What it does

Finds the models that each step calls and does not train: the teacher of a distillation, the
reference of preference tuning, the encoders of a diffusion model, a target network. Their calls run
inside `torch.autocast(device, torch.bfloat16)`, and their outputs are cast back to float32.

## Why it is faster

Matrix units take bfloat16 at two to sixteen times the float32 rate. A teacher is often larger than
its student, and its forward pass may take most of the step.

## When it does nothing

- No model is called in each step without being trained, or it is part of the trained one, where
  bf16-autocast reaches it.
- Gradients flow through it, as through the network of a perceptual loss.
- bfloat16 is only emulated here: CPUs without AMX or AVX512_BF16, NVIDIA GPUs before Ampere, MPS
  before macOS 14.
- The model is compiled, in half precision or in float64, or the script opens its own autocast
  region around it.

## What it may change

Factors and products are rounded to 8 significant bits, so the outputs differ from float32's by
about a percent. The Guard compares the outputs with those as written; what the loss makes of them,
the A/B runs of `tune` show.

## How it is undone

The layer around the model's call is removed.

## References

- https://docs.pytorch.org/docs/stable/amp.html
- Hinton, Vinyals, Dean, Distilling the Knowledge in a Neural Network,
  https://arxiv.org/abs/1503.02531
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import is_compiled
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, whole_speedup
from flatout_agent.speedups import nests
from flatout_agent.speedups.precision import bf16_call

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, ModelFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.ROUNDING, moment=Moment.FROZEN, rounds_by=2.0**-9)

FACTOR = 1.8
"""Likely speed-up of such a model's calls."""
PASSES = 3
"""A trained model takes this many times as long as the same model without a backward pass."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.bf16 is False:
        return f"bfloat16 would only be emulated on this {facts.device} device"
    if not any(map(_rounds, facts.frozen)):
        return "no model is called in each step without being trained"
    return None


def _rounds(model: ModelFacts) -> bool:
    """Whether its products can be rounded."""
    float32 = model.dtype.removeprefix("torch.") == "float32"
    return float32 and not model.compiled and bool(model.matmul or model.conv2d)


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, as if time went with the number of weights."""
    frozen = sum(model.parameters for model in facts.frozen if _rounds(model))
    trained = sum(model.parameters for model in facts.models)
    share = (1 - (facts.wait_share or 0.0)) * frozen / max(1, frozen + PASSES * trained)
    return whole_speedup((share, FACTOR))


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Put autocast around the model's calls."""
    import torch

    if is_compiled(target):
        raise Declined("the model is compiled")
    autocast, bf16 = bf16_call(target)

    def layer(call: Callable[..., Any]) -> Callable[..., Any]:
        in_autocast = autocast.layer(call)

        def call_frozen(*args: Any, **kwargs: Any) -> Any:
            trains = torch.is_grad_enabled() and (
                any(p.requires_grad for p in target.parameters())
                or any(tensor.requires_grad for tensor in nests.tensors((args, kwargs)))
            )
            return (call if trains else in_autocast)(*args, **kwargs)

        return call_frozen

    return Applied(autocast.around(job, target, layer), lambda: autocast.engaged(bf16.detail))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        f'with torch.no_grad(), torch.autocast("{facts.device}", dtype=torch.bfloat16):\n'
        "    targets = teacher(inputs)\n"
        "targets = targets.float()\n"
    )
