"""The undisturbed steps, watched while nothing was recorded and summed up as LoopSeen."""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile import compile, process
from flatout_agent.watch.profile.ast_loops import loops_around
from flatout_agent.watch.profile.loop import CallSite, LoopNotes
from flatout_agent.watch.profile.sharing import CoreSharing
from flatout_agent.watch.profile.switches import anomaly_line, tracing_line
from flatout_agent.watch.tensors import peak_bytes

EARLY_STEPS = 5

NUMBER = r"[1-9]\d*"
VARIABLES = (
    ("CUDA_LAUNCH_BLOCKING", NUMBER),
    ("HIP_LAUNCH_BLOCKING", NUMBER),
    ("AMD_SERIALIZE_KERNEL", NUMBER),
    ("AMD_SERIALIZE_COPY", NUMBER),
    ("AMD_LOG_LEVEL", NUMBER),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", NUMBER),
    ("TORCH_CUDA_SANITIZER", ".+"),
    ("PYTORCH_JIT", "0"),
    ("TORCH_COMPILE_DEBUG", "1"),
    ("TORCHDYNAMO_DISABLE", "1"),
    ("TORCH_DISTRIBUTED_DEBUG", "(?i)INFO|DETAIL"),
    ("TORCH_SHOW_CPP_STACKTRACES", "1"),
    ("TORCH_LOGS", ".+"),
    ("TORCH_CPP_LOG_LEVEL", "(?i)INFO|0"),
    ("NCCL_DEBUG", "(?i)INFO|TRACE"),
    ("NCCL_BLOCKING_WAIT", "1"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1"),
    ("CUDNN_LOGLEVEL_DBG", NUMBER),
    ("CUDNN_LOGINFO_DBG", "1"),
    ("CUBLAS_LOGINFO_DBG", "1"),
    ("PYTHONMALLOC", "(?i).*debug"),
    ("PYTHONTRACEMALLOC", NUMBER),
    ("PYTHONASYNCIODEBUG", ".+"),
    ("OMP_WAIT_POLICY", "(?i)active"),
)  # fmt: skip
"""Name, and the values that cost something (regular expressions for the whole value)."""


class Window:
    """The watched steps: begins after a step and ends with one; `summary` is called once all hooks
    are removed.
    """

    def __init__(self, loop: LoopNotes) -> None:
        self.loop = loop
        self.began = 0.0
        self.device = "cpu"
        self.steps: list[Step] = []
        self.sharing = CoreSharing()
        self.memory: list[int] = []
        self._in_use: process.MemoryInUse | None = None
        self._collections: process.Collections | None = None
        self._before: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @property
    def step_count(self) -> int:
        """Steps watched so far."""
        return len(self.steps)

    def begins(self, device: str) -> None:
        """Begin with the next step."""
        self.device = device
        self._before = self._now()
        self.sharing.start()
        self._in_use = process.MemoryInUse(device)
        self._collections = process.Collections()
        self.loop.window = True
        self.loop.calls.install(outside_compiled=not compile.in_use())
        self.began = time.perf_counter()

    def _forked(self) -> None:
        """A loader worker runs without the wrappers of the process that trains."""
        self.loop.calls.remove()
        if self._collections is not None:
            self._collections.remove()

    def step(self, step: Step) -> None:
        """One of its steps has ended."""
        self.steps.append(step)
        in_use = self._in_use.bytes() if self._in_use is not None else None
        if in_use is not None:
            self.memory.append(in_use)

    def ends(self) -> None:
        """End with the last step. Marks on graphs are evaluated later."""
        self.loop.window = False
        self.loop.calls.remove()
        if self._collections is not None:
            self._collections.remove()
        self.sharing.stop()
        now, workers = self._now(), self._before["workers"]
        self._used = {
            "cpu": now["cpu"] - self._before["cpu"],
            "workers": sum(s - workers.get(pid, 0.0) for pid, s in now["workers"].items())
            if now["workers"]
            else None,  # none can be read
            "retries": now["retries"] - self._before["retries"],
        }

    def _now(self) -> dict[str, Any]:
        return {
            "cpu": time.process_time(),
            "workers": process.worker_cpu_s(self.loop.loaders.workers()),
            "retries": process.alloc_retries(self.device),
        }

    def remove(self) -> None:
        """Stop watching."""
        if self._in_use is not None:
            self._in_use.close()
        if self._collections is not None:
            self._collections.remove()

    def summary(self, recorded: Sequence[Step], **fields: Any) -> wire.LoopSeen:
        """Everything, per step. The resources of a window that was cut short are unknown.

        fields: the fields of LoopSeen that are known elsewhere.
        """
        loop, count = self.loop, max(1, self.step_count)
        starts = loop.loaders.start_s
        workers = self._used.get("workers")
        gc = self._collections
        # The very first step is left out, as it creates what later ones reuse.
        early = loop.steps[1 : 1 + EARLY_STEPS]
        late = len(loop.steps) - self.step_count > EARLY_STEPS
        # Its share of a training step, averaged over the steps between two.
        every = steps_between(self.loop.steps)
        tested = [step.eval_s for step in self.steps if step.tested]
        mean_s = _mean([step.eval_s for step in self.steps])
        site = calling_site(self.loop.eval_at, self.loop.loss_at)
        return wire.LoopSeen(
            step_s=undisturbed_s(self.steps, recorded),
            steps=len(recorded),
            early_step_s=statistics.median(s.train_s for s in early) if late else 0.0,
            samples=_mean([step.samples for step in self.steps]),
            wait_s=_mean([step.wait_s for step in self.steps]),
            loader_start_s=_mean(starts) if starts else None,
            epochs=len(starts),
            main_cpu_s=self._used["cpu"] / count if "cpu" in self._used else None,
            worker_cpu_s=workers / count if workers is not None else None,
            gc_s=gc.s / count if gc is not None else 0.0,
            gc_runs=gc.runs / count if gc is not None else 0.0,
            calls=loop.calls.summary(count),
            input_shapes=max(1, len(loop.notes.shapes.get(0, ()))),
            memory_bytes=tuple(self.memory),
            anomaly=loop.anomaly,
            eval_s=_mean(tested) / every if every and tested else mean_s,
            eval_every=every,
            eval_trained=self.loop.tested,
            eval_called=f"{places.display(site.path)}:{site.line}" if site else None,
            eval_after_epoch=site is not None
            and self.loop.record.mean_micro_steps() == 1
            and after_epoch(site, self.loop.loss_at),
            losses_kept=loop.losses.kept(loop.job.steps),
            cores=self.sharing.summary(
                count, sum(step.wall_s for step in self.steps), loop.loaders.workers()
            )
            if self._used
            else None,
            eval_where=loop.places.get("eval"),
            backward_where=loop.places.get("backward"),
            optimizer_where=loop.places.get("optimizer"),
            model_where=loop.places.get("model"),
            loader_where=loop.loaders.where,
            anomaly_where=loop.recorder.safely("profile: anomaly", anomaly_line)
            if loop.anomaly
            else None,
            **self._process(),
            **fields,
        )

    def _process(self) -> dict[str, Any]:
        """Memory, torch.compile and settings of the process as it is now."""
        device, tracers = self.device, tracing_tools()
        return {
            "memory_peak_bytes": peak_bytes(self.loop.job),
            "memory_total_bytes": process.memory_total_bytes(device),
            "alloc_retries": self._used.get("retries", 0),
            "recompiles": compile.recompiles(),
            "graph_breaks": compile.graph_breaks(),
            "debug_variables": debug_variables(),
            "tracers": tracers,
            "tracers_where": self.loop.recorder.safely("profile: tracing", tracing_line)
            if tracers
            else None,
            "deterministic": deterministic(),
        }


def undisturbed_s(watched: Sequence[Step], recorded: Sequence[Step]) -> float:
    """Mean time of an undisturbed step, without evaluation.

    A mean is used since times come in bursts if a device gets work ahead or workers deliver several
    batches at once. A step in which a loader started counts only if one was also recorded.
    """
    if not any(step.epoch for step in recorded):
        watched = [step for step in watched if not step.epoch] or watched
    return _mean([step.train_s for step in watched])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def steps_between(steps: Sequence[Step]) -> float | None:
    """Steps from one evaluation to the next, or None if fewer than two were seen."""
    tested = [number for number, step in enumerate(steps) if step.tested]
    return (tested[-1] - tested[0]) / (len(tested) - 1) if len(tested) > 1 else None


def calling_site(inner: Sequence[CallSite], training: Sequence[CallSite]) -> CallSite | None:
    """The line in the training function that leads to `inner`, or None if they share no function.

    Both stacks go from the innermost line outwards. If one line leads to both, as
    `trainer.fit(model)` does, it is the line below that.
    """
    lines = {(site.path, site.function): site.line for site in reversed(training)}
    for number, site in enumerate(inner):
        line = lines.get((site.path, site.function))
        if line is not None:
            return inner[number - 1] if number and line == site.line else site
    return None


def after_epoch(site: CallSite, training: Sequence[CallSite]) -> bool:
    """Whether a call is in a loop around the loop of training steps, after each iteration of it.

    Hand-written epochs without a loader look like this.
    """
    for step in training:
        if (step.path, step.function) == (site.path, site.function):
            loops = loops_around(step.path, step.line)
            return len(loops) > 1 and site.line not in loops[0] and site.line in loops[1]
    return False


def debug_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """NAME=value of variables whose setting costs something, and Python's own modes."""
    environ = os.environ if environ is None else environ
    variables = [
        f"{name}={environ[name]}"
        for name, values in VARIABLES
        if name in environ and re.fullmatch(values, environ[name].strip())
    ]
    if sys.flags.dev_mode:
        variables.append("PYTHONDEVMODE=1")
    return tuple(variables)


def tracing_tools() -> tuple[str, ...]:
    """Tools that inspect each line or allocation of Python while the program runs."""
    names = []
    if tracemalloc.is_tracing():
        frames = tracemalloc.get_traceback_limit()
        names.append(f"tracemalloc ({frames} frame{'s' if frames > 1 else ''})")
    function = sys.gettrace()
    if function is not None:
        names.append(f"sys.settrace ({getattr(function, '__module__', type(function).__module__)})")
    if sys.version_info >= (3, 12):
        tools = (sys.monitoring.DEBUGGER_ID, sys.monitoring.COVERAGE_ID)
        names += [
            f"sys.monitoring ({tool})" for tool in map(sys.monitoring.get_tool, tools) if tool
        ]
    return tuple(names)


def deterministic() -> bool:
    """Whether slower kernels are chosen for reproducible results."""
    return bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic)
