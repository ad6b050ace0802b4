"""Compute attention that is written out as products and a softmax in a fused kernel.

## What it does

Finds the modules whose code multiplies matrices and takes a softmax. While such a module's forward
runs, the product of queries and keys is deferred, and so is what follows: the scale, masks, the
softmax. Where the result is multiplied with the values, all of it becomes one call of
`scaled_dot_product_attention`. Models of Transformers that run with `attn_implementation="eager"`
are set to `"sdpa"` where they support it.

The module's Python code runs every time, as it is. Whatever else it asks of the scores or the
weights (to print, return, store or change them) makes it compute them by the deferred operations.
Weights that are only stored, as by the Annotated Transformer, are computed when somebody looks at
them.

## Why it is faster

As written, the scores of all queries and keys go to memory and back for each operation, forward
and backward, and those that the backward pass needs are kept. The fused kernel works on pieces
that stay in the cache, computes the weights again in the backward pass, and skips the later keys
under a causal mask. Its memory grows with the length of the sequence, not with its square. On one
core of an AMD EPYC with torch 2.13, forward and backward of a causal attention module of width 256
with 8 heads took about half of the time at a length of 512 (medians of interleaved runs), and as
long as before at 64.

## When it does nothing

- No attention is written out, it has fewer than 65,536 scores, or no fused kernel takes it: a
  learned mask (a relative bias on a CPU), dropout of the weights on a CPU, values and keys of
  different width.
- Operations in between that it does not recognize, such as a mask of five dimensions.
- The script compiles the model or a part of it, or runs it under `DataParallel`; tracing,
  `torch.func`, anomaly detection and other modes of torch.
- What the boost compile compiles: the compiler sees attention as it is written, and nothing breaks
  its graphs. Calls in evaluation are fused beside it, and Transformers stay set to `"sdpa"`.
- A module of which three calls gave nothing to fuse, or whose weights are looked at.
- Transformers: where the program asks for attentions, in the configuration or in a call.

## What it may change

In float32 the sums are taken in another order. In lower precision, and under autocast, scores are
rounded less than as written, and the softmax is taken of them in float32. A query all of whose keys
are masked by minus infinity gives 0 instead of NaN. On an accelerator, dropout of the weights draws
other random numbers, and second derivatives through it are not available.

## How it is undone

The layers around the modules' calls are removed, deferred weights that are still held are computed,
and each configuration gets its own setting back.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
- Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135
- https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_work
from flatout_agent.chain import Depth, is_compiled, model_call
from flatout_agent.speedups.attention.calls import AttentionModule, Guarded
from flatout_agent.speedups.attention.code import candidates
from flatout_agent.speedups.attention.watch import watched

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("cuda-graphs",),
    # On an accelerator, where dropout is part of the kernel. On a CPU none is drawn in it.
    redraws=True,
)
PLAIN_CALLS = 3
"""Calls of a module from which nothing was fused before it is left alone."""
DEVICES = ("cpu", "cuda")
LEAST_SHARE = 0.003
"""Of the step, for softmax: with less there is no attention that matters."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job; None: it does."""
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
    """Likely speed-up; whether there is any attention shows when it is applied."""
    measured = speedup(facts, softmax=3.0, products=1.1, others=1.1)
    if measured is not None:
        return measured
    full = 1.3 if facts.device == "cuda" else 1.15
    return speedup_of_work(facts, full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Have the model's attention fused from now on."""
    reason = _cannot(target)
    if reason is not None:
        raise Declined(reason)
    configured = Configured(target)
    modules = candidates(target)
    if not (modules or configured.settings):
        raise Declined(configured.reason or "no attention is written out in the model's code")
    guarded = _guarded()
    if modules and not guarded.works:
        raise Declined("custom functions of this version of torch would see deferred scores")
    return _switch_on(job, target, modules, guarded, configured)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "# In place of softmax(q @ k.transpose(-2, -1) / math.sqrt(d) + mask) @ v; a mask that is\n"
        "# true where keys are left out goes in as ~mask, a causal one as is_causal=True.\n"
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
        "# Transformers:\n"
        'model.set_attn_implementation("sdpa")\n'
    )


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


def _switch_on(
    job: Job, target: Any, modules: list[torch.nn.Module], guarded: Guarded, configured: Configured
) -> Applied:
    first = job.steps
    places = [AttentionModule() for _ in modules]
    unwraps = [configured.switch_on(job, target)]
    for module, place in zip(modules, places, strict=True):
        layer = _layer(place)
        unwraps.append(model_call(module).wrap(Depth.ATTENTION, layer))
    unwraps.append(job.after_step(lambda: _learn(places)))
    guarded.hold()

    def undo() -> None:
        for unwrap in reversed(unwraps):
            unwrap()
        guarded.let_go()

    def engaged() -> tuple[bool, str]:
        return _engagement(places, configured, job.steps - first)

    return Applied(undo, engaged)


def _layer(place: AttentionModule) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda call: watched(place, call)


def _learn(places: list[AttentionModule]) -> None:
    """Between steps, so that a recomputed forward pass takes the same path."""
    for place in places:
        if place.calls >= PLAIN_CALLS and (not place.fused or 2 * place.wasted > place.fused):
            place.off = True
        place.settle()


def _engagement(
    places: list[AttentionModule], configured: Configured, steps: int
) -> tuple[bool, str]:
    fused, wasted = sum(p.fused for p in places), sum(p.wasted for p in places)
    parts = []
    if configured.on:
        parts.append(f"configurations of Transformers set to sdpa: {len(configured.settings)}")
    if fused > wasted:
        per_step = f", {fused / steps:.0f} a step" if steps > 0 else ""
        parts.append(f"{fused} attentions fused{per_step}")
    if parts:
        return True, "; ".join(parts)
    if fused:
        return False, "the attention weights are looked at"
    calls = sum(p.calls for p in places)
    if not calls:
        compiled = "its modules ran in compiled code alone, or under other modes of torch"
        return False, configured.reason or compiled
    return False, f"nothing to fuse was seen in {calls} calls of {len(places)} modules"


class Configured:
    """The configurations of Transformers under a model that ask for eager attention."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.settings: list[Any] = []
        """Configurations that were eager and can be sdpa."""
        self.reason = ""
        self.on = False
        self._job: weakref.ref[Any] | None = None
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
        if not self.settings:
            return lambda: None
        # Outside of what is compiled: it looks at each call, and at no operation.
        unwrap = job.wrap_call(target, Depth.LAYOUT, self._layer)
        self._set("eager", "sdpa")
        self.on = True

        def undo() -> None:
            unwrap()
            self._back()

        return undo

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


_guards: list[Guarded] = []
"""The instance of this process."""


def _guarded() -> Guarded:
    if not _guards:
        _guards.append(Guarded())
    return _guards[0]
