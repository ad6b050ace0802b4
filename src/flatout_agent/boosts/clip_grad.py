"""Leave gradients alone on a CPU when their norm is within the limit.

## What it does

Replaces the body of `torch.nn.utils.clip_grad_norm_`, however the program imported it, for
gradients on the CPU: if the norm is within the limit, they are left alone instead of multiplied by
1. The norm comes from the same operations as before, in the same order.

## Why it is faster

On a CPU it costs nothing to see whether a factor is 1; on an accelerator it would take a
synchronization, so torch always multiplies: a call and a pass over the memory for each parameter.
It also groups the gradients by device and precision, twice, and moves each norm to the device it is
already on.

The gain is small. Measured alternately with the original on one core of an AMD EPYC with torch
2.13, with nothing to clip: clipping took 0.4 to 0.8 of the time. That is about 1 % of a step for
transformers of width 64 to 512 with 8 sequences in a batch, and a few percent with one sequence.

## When it does nothing

- The model is on an accelerator: torch fuses these operations there and does not have to wait.
- The norm is above the limit in most steps: then nearly all of the work remains.
- Gradients that are sparse, of several precisions, in a graph, or of classes other than torch's
  own; norms other than the 2-norm; a limit that is a tensor; `foreach` chosen by the script; a norm
  that is not finite where `error_if_nonfinite` asks for an error.
- Compiled, traced or transformed calls.

## What it may change

Nothing: the gradients and the returned norm are the same to the last bit.

## How it is undone

The body of the function is put back.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.speedups.stand_in import StandIn, is_plain

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.START, switch=Switch.STEP)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, where torch clips all gradients in a few kernels"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: about one hundredth if the program clips at all."""
    return 1.005


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Replace the body of clip_grad_norm_ from now on."""
    clipping = _clipping()
    if clipping.body is None:
        raise Declined("this version of torch clips gradients differently")
    calls, spared = clipping.calls, clipping.spared
    clipping.body.hold()

    def engaged() -> tuple[bool, str]:
        count, left = clipping.calls - calls, clipping.spared - spared
        if not count:
            return False, "no gradients on the CPU were clipped"
        return True, f"left alone in {left} of {count} calls"

    return Applied(clipping.body.let_go, engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
        "norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))\n"
        "if not norm + 1e-6 <= max_norm:\n"
        "    torch._foreach_mul_(grads, max_norm / (norm + 1e-6))\n"
    )


class Clipping:
    """Handles the calls that it can make faster, and passes on the others."""

    def __init__(self) -> None:
        self.calls = self.spared = 0
        self.body = _body(self._stand_in)

    def _stand_in(self, original: Any) -> Any:
        import torch

        def clip_grad_norm_(
            parameters: Any,
            max_norm: Any,
            norm_type: Any = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Any:
            is_ordinary = (
                foreach is None and _number(max_norm) and _number(norm_type) and norm_type == 2
            )
            if not is_ordinary or torch.compiler.is_compiling():
                return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
            listed = parameters
            if isinstance(parameters, types.GeneratorType):
                listed = list(parameters) or parameters  # torch warns of an empty one
            norm = self._clipped(listed, float(max_norm), error_if_nonfinite)
            if norm is None:
                return original(listed, max_norm, norm_type, error_if_nonfinite, foreach)
            return norm

        return clip_grad_norm_

    def _clipped(self, parameters: Any, limit: float, finite: bool) -> Any:
        """The norm, after clipping the gradients to the limit; None if not handled and nothing was
        done.
        """
        import torch

        if type(parameters) not in (list, tuple):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else ()
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self._takes(grads):
            return None
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)), 2.0)
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
        if finite and not bool(norm.isfinite()):
            return None
        self.calls += 1
        if factor.item() == 1.0:
            self.spared += 1
        else:  # NaN, too
            torch._foreach_mul_(grads, factor)
        return norm

    def _takes(self, grads: list[Any]) -> bool:
        """Whether these are plain dense gradients on the CPU, of one precision, in no graph."""
        import torch

        if not grads or set(map(type, grads)) != {torch.Tensor} or not is_plain(grads[0]):
            return False
        kind, strided = grads[0].dtype, torch.strided
        return bool(kind.is_floating_point) and all(
            item.dtype is kind
            and item.layout is strided
            and item.is_cpu
            and not (item.requires_grad or item.is_nested)
            for item in grads
        )


class Body(StandIn):
    """The function that `clip_grad_norm_` calls inside `torch.no_grad`, held by its closure.

    Replacing it also reaches programs that imported `clip_grad_norm_` by name, at any time.
    """


def _body(make: Any) -> Body | None:
    """None if this version of torch is structured differently."""
    import torch

    outer = torch.nn.utils.clip_grad.clip_grad_norm_
    cells = getattr(outer, "__closure__", None) or ()
    inner = getattr(outer, "__wrapped__", None)
    for cell in cells:
        if inner is not None and cell.cell_contents is inner:
            return Body(cell, {"cell_contents": functools.wraps(inner)(make(inner))})
    return None


def _number(value: Any) -> bool:
    return type(value) in (float, int)


@functools.cache
def _clipping() -> Clipping:
    """The instance of this process."""
    return Clipping()
