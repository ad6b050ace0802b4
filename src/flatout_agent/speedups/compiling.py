"""torch.compile: whether it works here, compiled code, and the fallback if it fails.

The boost `compile` and the library's `train_step` share this.
"""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import is_compiled, is_recorded
from flatout_agent.attach.tracebacks import first_line

if TYPE_CHECKING:
    import torch

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""torch.compile's modes that capture CUDA graphs on a GPU."""


def counters() -> tuple[int, int]:
    """(recompilations, graph breaks) in this process so far; (0, 0) if nothing was compiled."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0, 0
    compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER
    breaks = sys.modules["torch._dynamo.utils"].counters["graph_break"]
    return sum(count - 1 for count in compiled.values() if count > 1), sum(breaks.values())


# Whether it can be compiled -----------------------------------------------------------------------


def cannot(model: torch.nn.Module) -> str | None:
    """Why this model must not be compiled, or None if it may be."""
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        return "the model is a ScriptModule"
    names = {base.__name__ for base in type(model).__mro__}
    wrapped = names & {"DataParallel", "FullyShardedDataParallel", "FSDPModule"}
    if wrapped:
        return f"the model is wrapped in {wrapped.pop()}"
    for module in model.modules():
        if ".quantized" in type(module).__module__:
            return "the model is quantized"
        if is_compiled(module):
            return "the script compiles the model or a part of it itself"
        if is_recorded(module):
            return "the script replays the model or a part of it as a CUDA graph itself"
    return None


def missing(device: str) -> str | None:
    """What torch.compile needs but lacks here, or None if it lacks nothing."""
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
    """Whether the program wants an error when torch stops recompiling (`torch._dynamo.config`)."""
    setting = getattr(config, "fail_on_recompile_limit_hit", None)
    if setting is None:  # its name before torch 2.7
        setting = getattr(config, "fail_on_cache_limit_hit", False)
    return bool(setting)


# Compiled code ------------------------------------------------------------------------------------


def run_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The call of a module, as a function for the compiler, whose code serves all like modules.

    Dynamo skips torch.nn's own files and compiles only what they call. Without a function of ours
    around it, a plain nn.Sequential would give no graph.
    """
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


class Code:
    """A function for the compiler, with a code object of its own.

    By code object, torch counts recompilations and remembers the functions that it gave up on.
    """

    def __init__(self, function: Callable[..., Any], mode: str, device: str) -> None:
        self.function: Any = function
        self.mode, self.device = mode, device
        self.graphs = device == "cuda" and mode in GRAPH_MODES
        """It captures CUDA graphs."""
        self.renew()

    def renew(self) -> None:
        """Forget what was compiled."""
        import torch

        function = self.function
        code = function.__code__.replace()
        fresh = types.FunctionType(code, function.__globals__, closure=function.__closure__)
        self.compiled = torch.compile(fresh, **self._settings())

    def _settings(self) -> dict[str, Any]:
        import torch

        if self.device != "cpu":
            return {} if self.mode == "default" else {"mode": self.mode}
        options = torch._inductor.list_mode_options(self.mode)
        # Inductor's own random numbers are slow on a CPU; the fallback's equal those of eager mode.
        return {"options": {**options, "fallback_random": True}}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


class KeptBuffers:
    """While it is held, a compiled backward pass keeps what it reads: else torch raises where a
    program goes through a graph twice, with `backward(retain_graph=True)`.
    """

    def __init__(self) -> None:
        self._holders = 0
        self._found = True

    def hold(self) -> None:
        """Add a holder."""
        from torch._functorch import config

        if not self._holders:
            self._found = getattr(config, "donated_buffer", False)  # since torch 2.6
            if self._found:
                config.donated_buffer = False
        self._holders += 1

    def let_go(self) -> None:
        """Remove a holder; without any, the setting is what it was."""
        from torch._functorch import config

        self._holders -= 1
        if not self._holders and self._found:
            config.donated_buffer = True


_kept_buffers = KeptBuffers()


class Attempts(logging.Filter):
    """Calls of compiled code; parts that the compiler cannot compile run as written.

    As a log filter, between `listen` and `close`, it collects dynamo's warnings during them.
    """

    LOGGER = "torch._dynamo.convert_frame"

    def __init__(self) -> None:
        import torch
        from torch._functorch import config as functorch

        super().__init__()
        self.calls = 0
        self.graphs_made = 0
        self.inside = False
        self.as_written = False
        """No block is compiled in this call."""
        self.failed = ""
        """First line of the compiler's first error."""
        self.given_up = False
        self.limit = False
        """torch has stopped recompiling."""
        self.errors = torch._dynamo.exc.TorchDynamoException
        self.before = counters()
        # Reading a setting takes 10 us: once is enough.
        self.suppressed = torch._dynamo.config.suppress_errors
        self.suppress = not fails_at_limit(torch._dynamo.config)
        self.lazy = hasattr(functorch, "force_non_lazy_backward_lowering")

    def listen(self) -> None:
        """Collect dynamo's warnings from now on."""
        logging.getLogger(self.LOGGER).addFilter(self)
        _kept_buffers.hold()

    def close(self) -> None:
        """Stop listening."""
        _kept_buffers.let_go()
        logging.getLogger(self.LOGGER).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep dynamo's messages about our calls for the report; let everything else through."""
        if not self.inside or record.levelno < logging.WARNING:
            return True
        if record.exc_info and record.exc_info[1] is not None:
            self.failed = self.failed or first_line(record.exc_info[1])
        elif "_limit" in str(record.msg) + str(record.args):
            self.limit = True
        return False

    def give_up(self, error: BaseException) -> None:
        """Run as written from now on. Few errors get here, since most are suppressed."""
        self.given_up, self.failed = True, first_line(error)

    def run(self, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call in which the compiler's errors are suppressed."""
        import torch

        counted = torch._dynamo.utils.counters["stats"]
        before = counted["unique_graphs"]
        # Parts that cannot be compiled run as written, without running anything twice. The compiler
        # must find out in the forward pass, since a backward pass cannot be abandoned.
        torch._dynamo.config.suppress_errors = self.suppress
        if self.lazy:
            torch._functorch.config.force_non_lazy_backward_lowering = True
        self.inside = True
        try:
            output = compiled(*args, **kwargs)
        finally:
            self.inside = False
            torch._dynamo.config.suppress_errors = self.suppressed
            if self.lazy:
                torch._functorch.config.force_non_lazy_backward_lowering = False
            self.graphs_made += counted["unique_graphs"] - before
        self.calls += 1
        return output

    def summary(self) -> str:
        """A summary of the code compiled so far."""
        now = counters()
        recompiled, breaks = (max(0, b - a) for a, b in zip(self.before, now, strict=True))
        text = f"{self.graphs_made} graphs, {recompiled} recompilations, {breaks} graph breaks"
        return f"{text}; a part failed: {self.failed}" if self.failed else text
