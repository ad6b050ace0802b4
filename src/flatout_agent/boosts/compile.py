"""Compile the model's forward and backward pass into fused kernels.

## What it does

Runs the model's training calls through `torch.compile`, in place: the model stays the script's own
object. Parameter `mode` is that of `torch.compile`: `default`, `reduce-overhead` (CUDA graphs),
`max-autotune` and `max-autotune-no-cudagraphs` (each kernel the fastest of several that Inductor
times: its options `max_autotune` and `coordinate_descent_tuning`). Where `default` was kept, tuning
tries the other modes against it if the rest of the run can repay their compilation. Calls in
evaluation mode or without gradients run as written, since each would be compiled anew.

## Why it is faster

Chains of small operations become one kernel that reads and writes memory once, and Python no
longer launches each operation. With CUDA graphs, a whole pass is one launch.

## When it does nothing

- There is no C++ compiler (CPU), no Triton (GPU), or Python's C headers are missing.
- The script compiles the model or a part of it itself.
- The model is a ScriptModule, quantized, DataParallel or sharded (FSDP wants its blocks compiled
  one by one).
- The compiler fails on this model: the part that failed runs as written.
- Shapes or values change so often that torch stops recompiling.
- `reduce-overhead` and the two `max-autotune` modes without a GPU do no more than the others.
- `reduce-overhead` and `max-autotune` on a GPU, where several models train or gradients accumulate:
  each run of a CUDA graph frees the gradients of the run before.

## What it may change

Fused kernels round in other places, and dropout draws other random numbers. The first steps take
seconds to minutes while code is generated. A compiler error in a backward pass that torch compiles
lazily would reach the script; a trial that meets one fails, and the boost is dropped.

## How it is undone

The layer around the model's call is removed: the next call runs as written.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_work
from flatout_agent.chain import Depth
from flatout_agent.speedups.compiling import SEVERAL, CompiledCalls, cannot, missing, traceable

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, ModelFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.ROUNDING,
    moment=Moment.MODEL,
    params={"mode": ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")},
    retry_after=("bf16-autocast", "fp16-autocast"),
    redraws=True,
    compiles=True,
)
AUTOTUNED = 1.04
"""Times what the same mode promises without timing kernels."""
LEAST_PROMISE = 1.08
"""Of a model whose operations leave little to fuse: Python's part of the step goes as well."""
MANY_SHAPES = 4
"""CUDA graphs are recorded once per shape; more than this many cost more than they save."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs, where there is a GPU."""
ACCUMULATED = "gradients accumulate over several batches, and each run of a CUDA graph frees them"


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job; None: it does."""
    mode = params.get("mode", "default")
    if not facts.compiler:
        return _no_compiler(facts.device)
    if facts.device == "cpu" and mode in ("reduce-overhead", "max-autotune-no-cudagraphs"):
        equivalent = "default" if mode == "reduce-overhead" else "max-autotune"
        return f"{mode} is the same as {equivalent} on the CPU: there are no CUDA graphs"
    reasons = [_why_not(model) for model in facts.models]
    if reasons and all(reasons):
        return reasons[0]
    return _why_no_graphs(facts) if mode in GRAPH_MODES else None


def _why_no_graphs(facts: JobFacts) -> str | None:
    shapes = max((len(model.input_shapes) for model in facts.models), default=0)
    if shapes > MANY_SHAPES:
        return f"{shapes} input shapes were seen, and CUDA graphs are recorded once a shape"
    if facts.device == "cuda" and len(facts.models) > 1:
        return SEVERAL
    if facts.device == "cuda" and facts.micro_steps > 1:
        return ACCUMULATED
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
    more = AUTOTUNED if "autotune" in params.get("mode", "") else 1.0
    measured = speedup(facts, others=1.6, norms=1.3, softmax=1.5, dropout=3.0)
    if measured is not None:
        return more * max(LEAST_PROMISE, measured)
    full = 1.12 if facts.device == "cpu" else 1.3
    if facts.device == "cuda" and params.get("mode") in GRAPH_MODES:
        # Graphs pay where the launches, some 10 us each, are most of a short step.
        full = 1.6 if (facts.step_s or 1.0) < 0.03 else 1.32
    return speedup_of_work(facts, more * full)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Compile the model's training calls."""
    import torch

    mode = params.get("mode", "default")
    device = next((p.device.type for p in target.parameters()), "cpu")
    innermost = _innermost(job, target)
    reason = cannot(target, innermost) or missing(device)
    if reason is not None:
        raise Declined(reason)
    graphs = device == "cuda" and mode in GRAPH_MODES
    if graphs and len(job.models) > 1:
        raise Declined(SEVERAL)
    compiled = torch.compile(traceable(target, innermost), mode=None if mode == "default" else mode)
    calls = CompiledCalls(job, target, compiled, graphs)
    unwrap = job.wrap_call(target, Depth.COMPILE, calls.layer)
    stop = job.after_step(calls.step_ended) if calls.graphs else None

    def undo() -> None:
        unwrap()
        calls.close()
        if stop is not None:
            stop()

    return Applied(undo, calls.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    mode = params.get("mode", "default")
    argument = "" if mode == "default" else f'mode="{mode}"'
    if any(model.kind == "Sequential" for model in facts.models):
        # model.compile() makes no graph of a plain nn.Sequential: see traceable
        return f"model = torch.compile({', '.join(['model', *([argument] if argument else [])])})\n"
    return f"model.compile({argument})  # in place, before training\n"


def _innermost(job: Job, model: torch.nn.Module) -> Callable[..., Any]:
    """The model's call without any layer: the script's own `model.compile()`, if there is one."""
    calls: list[Callable[..., Any]] = []

    def look(call: Callable[..., Any]) -> Callable[..., Any]:
        calls.append(call)
        return call

    job.wrap_call(model, Depth.COMPILE, look)()
    return calls[0]
