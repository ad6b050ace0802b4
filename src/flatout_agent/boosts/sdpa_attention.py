"""Set Transformers models from eager attention to PyTorch's fused kernels.

## What it does

Models of Transformers that run with `attn_implementation="eager"` are set to `"sdpa"` where they
support it: their configuration is changed, and their layers then call
`scaled_dot_product_attention`. Nothing is added to any operation.

## Why it is faster

With `"eager"`, the scores of all queries and keys go to memory and back for each operation, forward
and backward, and those that the backward pass needs are kept. The fused kernel works on pieces that
stay in the cache, computes the weights again in the backward pass, and skips the later keys under a
causal mask. Its memory grows with the length of the sequence, not with its square. Short sequences
gain little.

## When it does nothing

- The program has no Transformers model that is set to `"eager"`. Current versions choose `"sdpa"`
  by themselves for models that support it.
- The model does not support `"sdpa"`, or chooses its attention when it is made.
- The program asks for attentions, in the configuration or in a call.
- The script compiles the model or a part of it, or runs it under `DataParallel`.
- Attention is written out in the program itself: KERN008 of `flatout profile` names the lines. The
  boost compile replaces some forms with the fused kernel (Inductor's pattern matcher).

## What it may change

In float32 the sums are taken in another order. In lower precision, and under autocast, scores are
rounded less than by `"eager"`. On an accelerator, dropout of the weights draws other random
numbers, and second derivatives through it are not available.

## How it is undone

Each configuration gets its own setting back.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
- Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135
- https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth, is_compiled
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_work

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("cuda-graphs",),
    # On an accelerator, where dropout is part of the kernel.
    redraws=True,
)
DEVICES = ("cpu", "cuda")
LEAST_SHARE = 0.003
"""Share of the step that softmax must take; with less, attention does not matter."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device not in DEVICES:
        return f"the model is on {facts.device}, whose fused kernels have not been tested"
    if facts.device == "cuda" and facts.deterministic:
        return "the script asks for deterministic algorithms, which the fused kernels are not"
    if facts.models and all(model.compiled for model in facts.models):
        return "the script compiles the model itself"
    if facts.shares and facts.shares.get("softmax", 1.0) < LEAST_SHARE:
        return f"softmax takes {facts.shares['softmax']:.1%} of the step"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up; applying it shows whether there is a model to set."""
    measured = speedup(facts, softmax=3.0, products=1.1, others=1.1)
    if measured is not None:
        return measured
    full = 1.3 if facts.device == "cuda" else 1.15
    return speedup_of_work(facts, full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Set the configurations under the model, until it is undone."""
    reason = _cannot(target)
    if reason is not None:
        raise Declined(reason)
    configured = Configured(target)
    if not configured.settings:
        raise Declined(configured.reason or "no model of Transformers is set to eager attention")
    return Applied(configured.switch_on(job, target), configured.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return 'model.set_attn_implementation("sdpa")  # of Transformers\n'


def _cannot(model: torch.nn.Module) -> str | None:
    device = next((p.device.type for p in model.parameters()), "cpu")
    if device not in DEVICES:
        return f"the model is on {device}"
    for module in model.modules():
        if type(module).__name__ == "DataParallel":
            return "DataParallel copies the model for each call"
        if is_compiled(module):
            return "the script compiles the model or a part of it itself"
    return None


class Configured:
    """The configurations of Transformers under a model that ask for eager attention."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.settings: list[Any] = []
        """Configurations that were eager and can be sdpa."""
        self.reason = ""
        self.on = False
        loaded = sys.modules.get("transformers.modeling_utils")
        kind = getattr(loaded, "PreTrainedModel", None)
        if kind is None:
            return
        for module in model.modules():
            if isinstance(module, kind):
                self._add(module)

    def _add(self, model: torch.nn.Module) -> None:
        config = model.config
        if any(config is known for known in self.settings):
            return
        if getattr(config, "_attn_implementation_internal", None) != "eager":
            return
        if not getattr(model, "_supports_sdpa", False):
            self.reason = f"{type(model).__name__} does not support sdpa"
        elif not _can_be_set(model):
            self.reason = f"{type(model).__name__} has its attention chosen when it is made"
        elif getattr(config, "output_attentions", False):
            self.reason = "the program asks for attentions"
        else:
            self.settings.append(config)

    def switch_on(self, job: Job, target: Any) -> Callable[[], None]:
        """Set them all; returns the undo."""
        # Outside the compiled code: it looks at each call, and at no operation.
        unwrap = job.wrap_call(target, Depth.LAYOUT, self._layer)
        self._set("eager", "sdpa")
        self.on = True

        def undo() -> None:
            unwrap()
            self._back()

        return undo

    def engaged(self) -> tuple[bool, str]:
        """(took hold, detail)"""
        if not self.on:
            return False, self.reason
        return True, f"configurations of Transformers set to sdpa: {len(self.settings)}"

    def _layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked_call(*args: Any, **kwargs: Any) -> Any:
            if self.on and (
                kwargs.get("output_attentions")
                or any(getattr(config, "_output_attentions", False) for config in self.settings)
            ):
                self._back()
                self.reason = "the program asks for attentions"
            return call(*args, **kwargs)

        return checked_call

    def _set(self, before: str, after: str) -> None:
        for config in self.settings:
            if config._attn_implementation_internal == before:
                config._attn_implementation_internal = after

    def _back(self) -> None:
        if self.on:
            self.on = False
            self._set("sdpa", "eager")


def _can_be_set(model: torch.nn.Module) -> bool:
    """Whether its layers look at the configuration in each call."""
    ask = getattr(type(model), "_can_set_attn_implementation", None)
    return bool(ask is not None and ask())
