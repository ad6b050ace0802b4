"""Run the layers of a Transformers model through Liger's fused Triton kernels.

## What it does

If the package `liger-kernel` is installed and has kernels for a Hugging Face model's type, the
model's norms (RMSNorm, LayerNorm), gated feed-forward parts (SwiGLU, GEGLU) and rotary position
embedding run through them. Liger itself decides which parts of the model it replaces. Its changes
to the modules and the modeling files are undone at once, and the calls are redirected from outside,
so the model can be saved and copied as before.

Liger's cross entropies stay off: the one fused with the last layer makes `outputs.logits` None, and
the other writes gradients into the logits and replaces `torch.nn.functional.cross_entropy` for the
whole program. A script that reads nothing but the loss can turn the first on by hand and save much
memory with a large vocabulary.

## Why it is faster

A norm is some seven kernels in PyTorch, each of which reads and writes the whole activation; the
rotation of queries and keys is a dozen. Here each is one kernel forward and one backward, and less
is kept for the backward pass.

## When it does nothing

- The model is not on a CUDA device, not from Transformers, of a type that Liger has no kernels for,
  or without an RMSNorm.
- `liger-kernel` or Triton is not installed, or its version does not match that of Transformers.
- The model or a part of it is compiled or scripted, wrapped in DataParallel, or spread over GPUs.
- Single calls run as written where a module has hooks or a forward of its own, and on tensors that
  are on another device, of another dtype than float32, float16 and bfloat16, or of another class.
- compile is on (it fuses the same operations), or cuda-graphs (a recording keeps its kernels).

## What it may change

Rounding: sums are taken in another order, and some intermediate results are not rounded to the
model's dtype. Liger's kernels have no second derivative: in a program that takes gradients of
gradients nothing can be compared, so live tuning leaves this boost out. The rotary embedding is
replaced in the modeling file, so another model of the same type on a GPU rounds like this one.

## How it is undone

The redirected calls and the function in the modeling file are put back.

## References

- https://github.com/linkedin/Liger-Kernel
- https://arxiv.org/abs/2410.10989
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import compiled_by_user
from flatout_agent.attach.tracebacks import first_line
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_work
from flatout_agent.speedups.redirected import DTYPES, Before, RedirectedCalls, is_redirected

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    conflicts=("compile", "cuda-graphs"),
)
DEVICE = "cuda"
OFF = {"cross_entropy": False, "fused_linear_cross_entropy": False, "relu_squared": False}
"""Replacements that Liger may not make: see above; the last one changes a table that all models
share."""
GATES = {"swiglu": ("silu", "swish"), "geglu": ("gelu_pytorch_tanh",)}
"""Liger's switch -> the activations that its kernel computes, regardless of the model's own."""
NOT_INSTALLED = "liger-kernel is not installed: pip install liger-kernel"


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda":
        return f"Liger's kernels need a GPU, the model is on {facts.device}"
    if not facts.triton:
        return "Triton is missing, or the GPU is too old for it"
    if facts.models and all(model.compiled for model in facts.models):
        return "the script compiles the model itself"
    if facts.models and all(model.wrapped == "DataParallel" for model in facts.models):
        return "the model is wrapped in DataParallel"
    if facts.models and all(model.dtype not in DTYPES for model in facts.models):
        return f"the model is in {facts.models[0].dtype}, for which Liger has no kernels"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: norms and rotations are a tenth to a fifth of a language model's step."""
    return speedup_of_work(facts, 1.08)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Redirect the calls of every Transformers model in `target`."""
    reason = _cannot(target)
    if reason is not None:
        raise Declined(reason)
    liger = _liger()
    redirected = RedirectedCalls(DEVICE)
    try:
        for model in _supported(target, liger.MODEL_TYPE_TO_APPLY_LIGER_FN):
            _redirect(model, liger, redirected)
    except Exception as error:
        redirected.undo()
        if isinstance(error, Declined):
            raise
        raise Declined(f"liger-kernel refused the model: {first_line(error)}") from error
    return Applied(redirected.undo, lambda: _engaged(redirected))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "from liger_kernel.transformers import _apply_liger_kernel_to_instance\n"
        "# fused_linear_cross_entropy=True saves more where the script never reads outputs.logits\n"
        "_apply_liger_kernel_to_instance(\n"
        "    model=model, cross_entropy=False, fused_linear_cross_entropy=False\n"
        ")\n"
    )


# What may be done at all --------------------------------------------------------------------------


def _cannot(target: Any) -> str | None:
    """The cheap checks, made first: few programs have such a model, and importing Liger takes
    seconds.
    """
    import torch

    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)
    if base is None or not any(isinstance(module, base) for module in target.modules()):
        return "the model is not from Hugging Face Transformers"
    devices = {parameter.device for parameter in target.parameters()}
    if {device.type for device in devices} != {DEVICE}:
        return f"not all of the model is on {DEVICE}"
    if len(devices) > 1:
        return "the model is spread over several devices"
    if isinstance(target, torch.nn.DataParallel):
        return "the model is wrapped in DataParallel"
    for module in target.modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        compiled = compiled_by_user(module) and not is_redirected(module)
        if scripted or compiled or type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
    if not any("RMSNorm" in type(module).__name__ for module in target.modules()):
        return "the model has no RMSNorm, and Liger little to replace"
    return None if importlib.util.find_spec("liger_kernel") is not None else NOT_INSTALLED


def _liger() -> Any:
    """Liger's module that knows which parts of which model it replaces."""
    try:
        liger = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except Exception as error:  # it asks for a recent Transformers and for Triton
        raise Declined(f"liger-kernel does not work here: {first_line(error)}") from error
    if not hasattr(liger, "MODEL_TYPE_TO_APPLY_LIGER_FN"):
        raise Declined("this version of liger-kernel is not known to flatout")
    return liger


def _supported(target: Any, table: Any) -> list[Any]:
    """The outermost models in `target` that Liger has kernels for."""
    base = sys.modules["transformers.modeling_utils"].PreTrainedModel
    supported: list[Any] = []
    inside: set[int] = set()
    kinds: list[str] = []
    for module in target.modules():
        if id(module) in inside or not isinstance(module, base):
            continue
        kind = str(getattr(getattr(module, "config", None), "model_type", None))
        kinds.append(kind)
        if kind in table:
            supported.append(module)
            inside.update(id(part) for part in module.modules())
    if not supported:
        raise Declined(f"liger-kernel has no kernels for models of type {kinds[0]!r}")
    return supported


def _switches(model: torch.nn.Module) -> dict[str, bool]:
    """Liger's arguments: all of its defaults except those that would change more than rounding."""
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    return OFF | {name: activation in computed for name, computed in GATES.items()}


def _redirect(model: torch.nn.Module, liger: Any, redirected: RedirectedCalls) -> None:
    """Let Liger change the model, restore everything, and redirect calls to its replacements."""
    config: Any = model.config
    patch = liger.MODEL_TYPE_TO_APPLY_LIGER_FN[config.model_type]
    # With everything off it imports the modeling files that it changes, and changes none.
    patch(**dict.fromkeys(inspect.signature(patch).parameters, False) | {"model": None})
    before = Before(model, "liger_kernel")
    try:
        liger._apply_liger_kernel_to_instance(model=model, **_switches(model))
    finally:
        modules, functions, others_changed = before.put_back()
    if others_changed or any("forward" not in settings for _, settings in modules):
        raise Declined("liger-kernel changes parts of this model that cannot be redirected")
    if not modules:
        raise Declined("liger-kernel has nothing to replace in this model")
    for module, settings in modules:
        redirected.module(module, settings)
    for file, name, kernel in functions:
        redirected.function(file, name, kernel)


def _engaged(redirected: RedirectedCalls) -> tuple[bool, str] | None:
    """For `Applied.engaged`."""
    tallies = [*redirected.tallies, *(function.kernel.tally for function in redirected.functions)]
    ran = sum(1 for tally in redirected.tallies if tally.ran)
    failed = next((tally.failed for tally in tallies if tally.failed), "")
    if ran:
        detail = f"{ran} modules run by Liger's kernels"
        return True, detail + (f"; a kernel failed: {failed}" if failed else "")
    if failed:
        return False, f"Liger's kernels failed: {failed}"
    if any(tally.left_alone for tally in tallies):
        return False, "all calls had hooks, or tensors that Liger's kernels do not take"
    return None
