"""Compile the model's forward and backward pass into fused kernels.

## What it does

Runs the model's training calls through `torch.compile`, in place: the model stays the script's own
object. Parameter `mode` is that of `torch.compile`: `default`, `reduce-overhead` (CUDA graphs),
`max-autotune` and `max-autotune-no-cudagraphs` (each kernel the fastest of several that Inductor
times: its options `max_autotune` and `coordinate_descent_tuning`). Where `default` was kept, tuning
tries the others against it, as far as the rest of the run can earn back their compilation. Calls in
evaluation mode or without gradients run as written, since each would be compiled anew.

## Why it is faster

Chains of small operations become one kernel that reads and writes memory once, and Python no
longer launches each operation. With CUDA graphs, a whole pass is one launch.

## When it does nothing

- There is no C++ compiler (CPU), no Triton (GPU), or Python's own headers are missing.
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
late would reach the script; the trial that meets one fails, and the boost is dropped.

## How it is undone

The layer around the model's call is removed: the next call runs as written.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
"""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup, speedup_of_work
from flatout_agent.chain import Depth
from flatout_agent.speedups import nests

if TYPE_CHECKING:
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
"""CUDA graphs are recorded once a shape; more than this many cost more than they save."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs, where there is a GPU."""
SEVERAL = "several models train, and a CUDA graph of one frees the gradients of the others"
ACCUMULATED = "gradients accumulate over several batches, and each run of a CUDA graph frees them"


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job; None: it does."""
    mode = params.get("mode", "default")
    if not facts.compiler:
        return _no_compiler(facts.device)
    if facts.device == "cpu" and mode in ("reduce-overhead", "max-autotune-no-cudagraphs"):
        other = "default" if mode == "reduce-overhead" else "max-autotune"
        return f"{mode} is the same as {other} on the CPU: there are no CUDA graphs"
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


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Compile the model's training calls."""
    torch = job.torch
    mode = params.get("mode", "default")
    device = next((p.device.type for p in target.parameters()), "cpu")
    innermost = _innermost(job, target)
    reason = cannot(torch, target, innermost) or missing(torch, device)
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
    given = "" if mode == "default" else f'mode="{mode}"'
    if any(model.kind == "Sequential" for model in facts.models):
        # model.compile() makes no graph of a plain nn.Sequential: see traceable
        return f"model = torch.compile({', '.join(['model', *([given] if given else [])])})\n"
    return f"model.compile({given})  # in place, before training\n"


def counters() -> tuple[int, int]:
    """(recompilations, graph breaks) in this process so far; (0, 0) where nothing was compiled."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0, 0
    compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER
    breaks = sys.modules["torch._dynamo.utils"].counters["graph_break"]
    return sum(count - 1 for count in compiled.values() if count > 1), sum(breaks.values())


def _innermost(job: Job, model: Any) -> Callable[..., Any]:
    """The model's call without any layer: the script's own `model.compile()`, if there is one."""
    seen: list[Callable[..., Any]] = []

    def look(call: Callable[..., Any]) -> Callable[..., Any]:
        seen.append(call)
        return call

    job.wrap_call(model, Depth.COMPILE, look)()
    return seen[0]


def traceable(model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, in a function of ours where torch would skip it.

    Dynamo passes over frames of torch.nn's own files and compiles what they call. A model whose
    forward is torch's own, such as a plain nn.Sequential, has nothing else: `model.compile()`
    makes no graph of it and says nothing.
    """
    if not type(model).forward.__module__.startswith("torch."):
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


def cannot(torch: Any, model: Any, innermost: Callable[..., Any]) -> str | None:
    """Why this model is not ours to compile; None: it is."""
    if isinstance(model, torch.jit.ScriptModule):
        return "the model is a ScriptModule"
    names = {base.__name__ for base in type(model).__mro__}
    wrapped = names & {"DataParallel", "FullyShardedDataParallel", "FSDPModule"}
    if wrapped:
        return f"the model is wrapped in {wrapped.pop()}"
    own: list[Any] = [innermost]
    for module in model.modules():
        own += [module.__dict__.get("_compiled_call_impl"), getattr(module, "forward", None)]
        if ".quantized" in type(module).__module__:
            return "the model is quantized"
        if type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
    if any(hasattr(call, "_torchdynamo_orig_callable") for call in own):
        return "the script compiles the model or a part of it itself"
    return None


def missing(torch: Any, device: str) -> str | None:
    """What torch.compile needs and does not find."""
    try:
        from torch._dynamo.eval_frame import check_if_dynamo_supported

        check_if_dynamo_supported()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns of torch's own old parts
            importlib.import_module("torch._inductor.compile_fx")
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            return "Python's C headers are missing (package python3-dev or python3-devel)"
        if device == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
            return None
        from torch.utils._triton import has_triton

        if device not in ("cuda", "xpu"):
            return f"torch.compile makes no kernels for devices of type {device}"
        if not has_triton():
            return "Triton is missing, or the GPU is too old for it"
        if sys.platform != "win32" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
            return "Triton needs a C compiler, and there is none"
    except Exception as error:
        return f"torch.compile does not work here: {first_line(error)}"
    return None


def fails_at_limit(config: Any) -> bool:
    """Whether the program wants an error where torch stops recompiling (`torch._dynamo.config`)."""
    found = getattr(config, "fail_on_recompile_limit_hit", None)
    if found is None:  # its name before torch 2.7
        found = getattr(config, "fail_on_cache_limit_hit", False)
    return bool(found)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # "backend='inductor' raised:" says nothing yet.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


class Attempts(logging.Filter):
    """Calls of compiled code; as a log filter, it takes in what dynamo complains of meanwhile."""

    LOGGER = "torch._dynamo.convert_frame"

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self.torch = torch
        self.graphs_made = 0
        self.inside = False
        self.failed = ""
        """First line of the first error of the compiler."""
        self.given_up = False
        self.limit = False
        """torch stopped recompiling."""
        logging.getLogger(self.LOGGER).addFilter(self)

    def close(self) -> None:
        """Stop listening."""
        logging.getLogger(self.LOGGER).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what dynamo logs of our calls for the report; let everything else through."""
        if not self.inside or record.levelno < logging.WARNING:
            return True
        if record.exc_info and record.exc_info[1] is not None:
            self.failed = self.failed or first_line(record.exc_info[1])
        elif "_limit" in str(record.msg) + str(record.args):
            self.limit = True
        return False


class CompiledCalls(Attempts):
    """The layer around one model's call."""

    def __init__(self, job: Job, model: Any, compiled: Any, graphs: bool) -> None:
        super().__init__(job.torch)
        self.job, self.model, self.compiled, self.graphs = job, model, compiled, graphs
        self.calls = 0
        self.step_begins = False
        self.refused = ""
        """Why it is not compiled any more, though the compiler did its part."""

    def step_ended(self) -> None:
        """The next call begins a new step."""
        self.step_begins = True

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, compiled in training."""
        torch = self.job.torch
        errors = torch._dynamo.exc.TorchDynamoException

        def compiled_call(*args: Any, **kwargs: Any) -> Any:
            if self.given_up or not (self.model.training and torch.is_grad_enabled()):
                return call(*args, **kwargs)
            if self.graphs and len(self.job.models) > 1:  # another one was seen since `apply`
                self.given_up, self.refused = True, SEVERAL
                return call(*args, **kwargs)
            try:
                output = self._run(args, kwargs)
            except errors as error:
                # With errors suppressed, only those come here that leave no way to go on.
                self.given_up, self.failed = True, first_line(error)
                return call(*args, **kwargs)
            return nests.change(output, torch.clone) if self.graphs else output

        return compiled_call

    def _run(self, args: Any, kwargs: Any) -> Any:
        if self.step_begins:
            self.torch.compiler.cudagraph_mark_step_begin()
            self.step_begins = False
        dynamo = self.torch._dynamo
        stats = dynamo.utils.counters["stats"]
        before, suppressed = stats["unique_graphs"], dynamo.config.suppress_errors
        # What the compiler cannot do runs as written, without running twice what had begun.
        dynamo.config.suppress_errors = not fails_at_limit(dynamo.config)
        self.inside = True
        try:
            output = self.compiled(*args, **kwargs)
        finally:
            self.inside = False
            dynamo.config.suppress_errors = suppressed
            self.graphs_made += stats["unique_graphs"] - before
        self.calls += 1
        return output

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if self.given_up:
            return False, self.refused or f"the compiler failed: {self.failed}"
        if not self.calls:
            return None
        if self.limit:
            return (
                False,
                "recompiled until torch's limit, then ran as written: inputs vary too much",
            )
        if not self.graphs_made and self.failed:
            return False, f"the compiler failed: {self.failed}"
        recompiled, breaks = counters()
        if not self.graphs_made and not self._shared():
            return False, "no graph was compiled"
        detail = f"{self.graphs_made} graphs, {recompiled} recompilations, {breaks} graph breaks"
        return True, detail + (f"; a part failed: {self.failed}" if self.failed else "")

    def _shared(self) -> bool:
        """Another root model of the same class was compiled, and its code serves this one too."""
        stats = self.job.torch._dynamo.utils.counters["stats"]
        others = [item for item in self.job.models if item is not self.model]
        return stats["unique_graphs"] > 0 and any(type(x) is type(self.model) for x in others)
