"""torch.compile: whether it works here, what it reports, and the fallback where it fails.

The boost `compile` and the library's `train_step` share this.
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

from flatout_agent.speedups import nests
from flatout_agent.tracebacks import first_line

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

SEVERAL = "several models train, and a CUDA graph of one frees the gradients of the others"


def counters() -> tuple[int, int]:
    """(recompilations, graph breaks) in this process so far; (0, 0) where nothing was compiled."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0, 0
    compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER
    breaks = sys.modules["torch._dynamo.utils"].counters["graph_break"]
    return sum(count - 1 for count in compiled.values() if count > 1), sum(breaks.values())


def traceable(model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, wrapped in a function of ours where torch would skip it.

    Dynamo passes over frames of torch.nn's own files and compiles what they call. A model whose
    forward is torch's own, such as a plain nn.Sequential, has nothing else: `model.compile()`
    makes no graph of it and says nothing.
    """
    if not type(model).forward.__module__.startswith("torch."):
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


def cannot(model: torch.nn.Module, innermost: Callable[..., Any]) -> str | None:
    """Why this model must not be compiled; None: it may be."""
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        return "the model is a ScriptModule"
    names = {base.__name__ for base in type(model).__mro__}
    wrapped = names & {"DataParallel", "FullyShardedDataParallel", "FSDPModule"}
    if wrapped:
        return f"the model is wrapped in {wrapped.pop()}"
    calls: list[Any] = [innermost]
    for module in model.modules():
        calls += [module.__dict__.get("_compiled_call_impl"), getattr(module, "forward", None)]
        if ".quantized" in type(module).__module__:
            return "the model is quantized"
        if type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
    if any(hasattr(call, "_torchdynamo_orig_callable") for call in calls):
        return "the script compiles the model or a part of it itself"
    return None


def missing(device: str) -> str | None:
    """What torch.compile needs and does not have here; None: nothing."""
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
    setting = getattr(config, "fail_on_recompile_limit_hit", None)
    if setting is None:  # its name before torch 2.7
        setting = getattr(config, "fail_on_cache_limit_hit", False)
    return bool(setting)


class Attempts(logging.Filter):
    """Calls of compiled code; as a log filter, it collects dynamo's warnings during them."""

    LOGGER = "torch._dynamo.convert_frame"

    def __init__(self) -> None:
        super().__init__()
        self.graphs_made = 0
        self.inside = False
        self.failed = ""
        """First line of the first error of the compiler."""
        self.given_up = False
        self.limit = False
        """torch has stopped recompiling."""
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

    def __init__(self, job: Job, model: torch.nn.Module, compiled: Any, graphs: bool) -> None:
        super().__init__()
        self.job, self.model, self.compiled, self.graphs = job, model, compiled, graphs
        self.calls = 0
        self.step_begins = False
        self.refused = ""
        """Why it is no longer compiled, although the compiler did not fail."""

    def step_ended(self) -> None:
        """The next call begins a new step."""
        self.step_begins = True

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, compiled in training."""
        import torch

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
                # With errors suppressed, only those arrive here that cannot be recovered from.
                self.given_up, self.failed = True, first_line(error)
                return call(*args, **kwargs)
            return nests.change(output, torch.clone) if self.graphs else output

        return compiled_call

    def _run(self, args: Any, kwargs: Any) -> Any:
        import torch

        if self.step_begins:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            self.step_begins = False
        dynamo = torch._dynamo
        stats = dynamo.utils.counters["stats"]
        before, suppressed = stats["unique_graphs"], dynamo.config.suppress_errors
        # What the compiler cannot handle runs as written, and nothing runs twice.
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
        import torch

        stats = torch._dynamo.utils.counters["stats"]
        others = [model for model in self.job.models if model is not self.model]
        return stats["unique_graphs"] > 0 and any(type(x) is type(self.model) for x in others)
