"""Compile the model's repeated blocks, or all of it, into fused kernels.

## What it does

Runs the training calls through `torch.compile`, in place: the model stays the script's own object.
Parameter `scope` says what is compiled:

- `blocks`: the model's repeated blocks (transformer layers, residual blocks). The code of the first
  one serves all that are alike, so a deep model starts as soon as a shallow one. Everything outside
  the blocks runs as written.
- `whole`: the model, in one piece. It is tried first if no three blocks are alike or much of the
  model is outside them, and after `blocks` if the rest of the run can repay its compilation.

Parameter `mode`, for `whole` alone, is that of `torch.compile`: `default`, `reduce-overhead` (CUDA
graphs), `max-autotune` and `max-autotune-no-cudagraphs` (each kernel the fastest of several that
Inductor times: its options `max_autotune` and `coordinate_descent_tuning`). If `default` was kept,
tuning compares the other modes with it if the rest of the run can repay their compilation.
On a CPU, random numbers come from PyTorch's own generator (Inductor's option `fallback_random`):
in a model with dropout, Inductor's own would take longer than compiling saves.

Calls in evaluation mode or without gradients run as written, since each would be compiled again;
so do calls whose inputs are leaves with a gradient, as for a gradient penalty: compiled code has no
second derivatives. `backward(retain_graph=True)` works: buffers are not donated.

## Why it is faster

Chains of small operations become one kernel that reads and writes memory once, and Python no
longer launches each operation. With CUDA graphs, a whole pass is one launch.

## When it does nothing

- There is no C++ compiler (CPU), no Triton (GPU), or Python's C headers are missing.
- The script compiles the model or a part of it itself.
- The script has hooks on the model or its parameters: what is compiled while the Guard repeats a
  call would be without them.
- The model is a ScriptModule, quantized, DataParallel or sharded (FSDP wants its blocks compiled
  one by one).
- `blocks` if the model does not mostly consist of like blocks: of one class, with weights of the
  same shapes, and the same rates (as of a DropPath); or with torch 2.4, which would compile each
  block again.
- The compiler fails on this model: the part that failed runs as written.
- Shapes or values change so often that torch stops recompiling.
- `reduce-overhead` and the two `max-autotune` modes without a GPU do no more than the others.
- `reduce-overhead` and `max-autotune` on a GPU if several models train: each run of a CUDA graph
  frees the gradients of the run before. The model's own gradients are copied out of the graph's
  memory, only once if they stay and accumulate.

## What it may change

Fused kernels round in different places, and on a GPU dropout draws other random numbers. The first
steps take seconds to minutes while code is generated. Compiled blocks of Transformers models do not
write to the empty generation cache that these models create even in training.

## How it is undone

The layers around the calls of the model and its blocks are removed: the next call runs as written.
While boosts are tried, compiled code is kept for its next turn; once the boost is decided against,
it is dropped.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://docs.pytorch.org/tutorials/recipes/regional_compilation.html
- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_launches, speedup_of_work
from flatout_agent.speedups import own_hooks
from flatout_agent.speedups.compiled_calls import SEVERAL, CompiledCalls
from flatout_agent.speedups.compiling import GRAPH_MODES, cannot, missing
from flatout_agent.speedups.repeated_blocks import shared_blocks

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, ModelFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    params={
        "scope": ("blocks", "whole"),
        "mode": ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"),
    },
    redraws=True,
    compiles=True,
)
AUTOTUNED = 1.04
"""A factor on the promise of the same mode without timing kernels."""
BLOCKS = 0.97
"""A factor on the promise of the whole model: everything outside the blocks runs as written."""
LEAST_PROMISE = 1.08
"""The promise for a model whose operations leave little to fuse: Python's part of the step also
goes."""
LAUNCHES, GRAPH_LAUNCHES = 2.0, 5.0
"""A compiled pass is launched this many times as fast; the second value is for a CUDA graph."""
MANY_SHAPES = 4
"""CUDA graphs are recorded once per shape; more than this many cost more than they save."""
NO_BLOCKS = "the model is not mostly made of three or more blocks that are alike"
TOO_OLD = "2.4."
ANEW = "torch compiles each block anew, before version 2.5"


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    mode = params.get("mode", "default")
    if not facts.compiler:
        return _no_compiler(facts.device)
    if facts.device == "cpu" and mode in ("reduce-overhead", "max-autotune-no-cudagraphs"):
        equivalent = "default" if mode == "reduce-overhead" else "max-autotune"
        return f"{mode} is the same as {equivalent} on the CPU: there are no CUDA graphs"
    reasons = [_why_not(model) for model in facts.models]
    if reasons and all(reasons):
        return reasons[0]
    if params.get("scope") == "blocks":
        return _why_no_blocks(facts, mode)
    return _why_no_graphs(facts) if mode in GRAPH_MODES else None


def _why_no_blocks(facts: JobFacts, mode: str) -> str | None:
    if facts.torch.startswith(TOO_OLD):
        return ANEW
    if mode != "default":
        return f"{mode} is for the whole model"
    if facts.models and not any(model.blocks for model in facts.models):
        return NO_BLOCKS
    return None


def _why_no_graphs(facts: JobFacts) -> str | None:
    shapes = max((len(model.input_shapes) for model in facts.models), default=0)
    if shapes > MANY_SHAPES:
        return f"{shapes} input shapes were seen, and CUDA graphs are recorded once a shape"
    if facts.device == "cuda" and len(facts.models) > 1:
        return SEVERAL
    return None


def _no_compiler(device: str) -> str:
    what = "a C++ compiler" if device == "cpu" else "Triton"
    return f"torch.compile needs {what} and Python's headers, and does not find them"


def _why_not(model: ModelFacts) -> str | None:
    if model.compiled:
        return "the script compiles the model itself"
    if model.wrapped in ("DataParallel", "FullyShardedDataParallel"):
        return f"the model is wrapped in {model.wrapped}"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    factor = AUTOTUNED if "autotune" in params.get("mode", "") else 1.0
    factor *= BLOCKS if params.get("scope") == "blocks" else 1.0
    # On a CPU the random numbers stay PyTorch's.
    dropout = 1.0 if facts.device == "cpu" else 3.0
    measured = speedup(facts, others=1.6, norms=1.3, softmax=1.5, dropout=dropout)
    if measured is not None:
        return factor * max(LEAST_PROMISE, measured)
    full = 1.12 if facts.device == "cpu" else 1.3
    if facts.device == "cuda" and params.get("mode") in GRAPH_MODES:
        # Graphs pay where the launches, some 10 us each, are most of a short step.
        full = 1.6 if (facts.step_s or 1.0) < 0.03 else 1.32
    graphs = params.get("mode") in GRAPH_MODES
    launches = speedup_of_launches(facts, GRAPH_LAUNCHES if graphs else LAUNCHES)
    return max(speedup_of_work(facts, factor * full), factor * (launches or 1.0))


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Compile the model's training calls, or those of its blocks."""
    scope, mode = params.get("scope", "whole"), params.get("mode", "default")
    device = next((p.device.type for p in target.parameters()), "cpu")
    reason = cannot(target) or missing(device)
    if reason is not None:
        raise Declined(reason)
    if own_hooks.any_on(target):
        raise Declined("compiled code may not call the hooks that the program has on the model")
    if device == "cuda" and mode in GRAPH_MODES and len(job.models) > 1:
        raise Declined(SEVERAL)
    blocks = _blocks(target) if scope == "blocks" else []
    kept = _kept.setdefault(target, {})
    calls = kept.get((scope, mode))
    if calls is None or calls.job is not job or len(calls.codes) != max(1, len(blocks)):
        calls = kept[scope, mode] = CompiledCalls(job, mode, device, blocks)
    return calls.put_on(target, blocks)


def forget(job: Job) -> None:
    """Drop the compiled code that was kept for the next time."""
    for model in job.models:
        _kept.pop(model, None)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    mode = params.get("mode", "default")
    argument = "" if mode == "default" else f'mode="{mode}"'
    if params.get("scope") == "blocks":
        return (
            "# before training; model.blocks: the repeated blocks, wherever the model keeps them\n"
            "# (torch passes over its own classes, such as nn.TransformerEncoderLayer: derive one\n"
            "# whose forward calls that of super())\n"
            "for block in model.blocks:\n"
            "    block.compile()  # in place; the code of the first serves all\n"
        )
    if any(model.kind == "Sequential" for model in facts.models):
        # model.compile() makes no graph of a plain nn.Sequential, whose forward is torch's own
        return f"model = torch.compile({', '.join(['model', *([argument] if argument else [])])})\n"
    return f"model.compile({argument})  # in place, before training\n"


def _blocks(model: torch.nn.Module) -> list[list[torch.nn.Module]]:
    import torch

    if torch.__version__.startswith(TOO_OLD):
        raise Declined(ANEW)
    blocks = shared_blocks(model)
    if not blocks:
        raise Declined(NO_BLOCKS)
    return blocks


_kept: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], CompiledCalls]] = (
    weakref.WeakKeyDictionary()
)
"""The compiled code of each model that still exists."""
