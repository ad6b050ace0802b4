"""Keep a transformer's residual stream in bfloat16, where autocast leaves it in float32.

## What it does

Replaces `torch.nn.functional.embedding`, which `nn.Embedding` calls: inside a bfloat16 autocast
region, the output of an embedding is cast to bfloat16 as well. Weights, their gradients and the
optimizer's state stay float32.

## Why it is faster

Autocast has no rule for embeddings: they come out in the weight's float32. Each block adds bfloat16
to that, and the sum is float32 again, through the whole model: additions, norms and saved
activations read and write 4 bytes for each element where 2 would do. Compiled code gains most,
since its casts cost nothing.

## When it does nothing

- There is no bfloat16 autocast: neither the script's own nor that of bf16-autocast.
- The model has no embedding, or adds a float32 parameter to the embedding's output (learned
  positions that are not an `nn.Embedding`): the sum is float32.
- The norms come after the sums (as in BERT) and the model is on a GPU: autocast computes layer
  norms in float32 there, and the stream is their output.
- The model has recurrent layers: some of them compute in the type of their input.

## What it may change

The stream is rounded to 8 significant bits after each sum. What the model returns may be bfloat16
where it was float32, if the script itself opens the autocast region. A model exported or traced
inside autocast in the meantime contains the cast; a scripted one does not.

## How it is undone

torch's own function is put back; compiled code goes back to what was compiled without it.

## References

- https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
- https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup
from flatout_agent.speedups.stand_in import StandIn

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, ModelFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("fp16-autocast", "cpu-bf16"),
    needs="bf16-autocast",
)
LEAST_PROMISE = 1.02
DEVICES = ("cpu", "cuda", "mps", "xpu")


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.autocast not in (None, "bfloat16"):
        return f"the script's own autocast region is in {facts.autocast}"
    if facts.autocast is None and facts.scaler:
        return "the script scales its loss for float16 itself"
    if facts.autocast is None and facts.bf16 is False:
        return f"bfloat16 would only be emulated on this {facts.device} device"
    reasons = [_why_not(model) for model in facts.models]
    return reasons[0] if reasons and all(reasons) else None


def _why_not(model: ModelFacts) -> str | None:
    dtype = model.dtype.removeprefix("torch.")
    if dtype != "float32":
        return f"{model.kind} is in {dtype}, not in float32"
    if not model.embeddings or not model.matmul:
        return f"{model.kind} has no embedding that feeds matrix products"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials: below that of the autocast it needs."""
    measured = speedup(facts, others=1.1, norms=1.1)
    return LEAST_PROMISE if measured is None else measured


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace embedding from now on."""
    import torch

    kinds = [type(module) for module in target.modules()]
    if any(issubclass(kind, (torch.nn.RNNBase, torch.nn.RNNCellBase)) for kind in kinds):
        raise Declined("the model has recurrent layers, which compute in the type of their input")
    has_parameters = any(True for _ in target.parameters())  # a plan starts before there is a model
    if has_parameters and not any(issubclass(kind, torch.nn.Embedding) for kind in kinds):
        raise Declined("the model has no embedding")
    casts = _casts()
    if not casts.stand_in.holders:
        casts.cast = False
    casts.stand_in.hold()
    return Applied(casts.stand_in.let_go, casts.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "def to_bf16(module, inputs, output):\n"
        f'    on = torch.is_autocast_enabled("{facts.device}")\n'
        "    return output.to(torch.bfloat16) if on else output\n"
        "\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Embedding):\n"
        "        module.register_forward_hook(to_bf16)\n"
    )


class Casts:
    """Calls torch's embedding and casts its output."""

    def __init__(self) -> None:
        import torch

        self.cast = False
        """Something was cast. A flag: a count would make compiled code recompile at each value."""
        original = torch.nn.functional.embedding
        self.stand_in = StandIn(torch.nn.functional, {"embedding": self._around(original)})

    def _around(self, original: Any) -> Any:
        import torch

        devices = tuple(filter(torch.amp.is_autocast_available, DEVICES))

        @functools.wraps(original)
        def embedding(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if not self.stand_in.holders or not isinstance(output, torch.Tensor):
                return output
            device = output.device.type
            if device not in devices or output.dtype is not torch.float32:
                return output
            dtype = torch.get_autocast_dtype(device)
            if not torch.is_autocast_enabled(device) or dtype is not torch.bfloat16:
                return output
            self.cast = True
            return output.to(dtype)

        embedding.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
        return embedding

    def engaged(self) -> tuple[bool, str]:
        """For `Applied.engaged`."""
        if self.cast:
            return True, "embeddings come out in bfloat16"
        return False, "no embedding was computed under bfloat16 autocast"


@functools.cache
def _casts() -> Casts:
    """The instance of this process: two models share torch's function."""
    return Casts()
