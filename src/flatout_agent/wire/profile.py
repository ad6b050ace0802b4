"""The part of the contract between host and agent that is about profiles; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass

from flatout_agent.wire.flow import FlowSeen
from flatout_agent.wire.host import CoresSeen

SHORT_RUN = 150
"""From this many steps in the whole run on, no phase of a profile has to be shortened."""


@dataclass(frozen=True)
class ProfileOrders:
    """Record a window of the running program, then let it go on or stop it."""

    skip_s: float = 0.0
    """Seconds to wait before looking for steady state."""
    steps: int = 6
    """Steps recorded for their times, without stacks."""
    stop: bool = False
    """End the program once the window is recorded; otherwise it goes on unwatched."""
    warmup_max_s: float = 60.0
    known_steps: int | None = None
    """Steps of the whole program, if an earlier run has shown it to be short."""
    without_profiler: bool = False
    """Whether the script's own profilers record nothing, in a separate run."""


@dataclass(frozen=True)
class CallSeen:
    """A Python call that a loop should not make, or not in each step."""

    name: str
    """torch.save, print, Tensor.item, torch.cuda.empty_cache, Module(), Optimizer().

    hook: one that was registered and still exists.
    """
    calls: float
    """Calls per step."""
    s: float
    """Seconds per step."""
    where: str | None = None
    """file:line of the user's code."""
    detail: str = ""
    """Text for people: the device, the class of the object made, the file opened."""


@dataclass(frozen=True)
class UpdateSeen:
    """How a program without an optimizer changes its weights in one step."""

    where: str
    """file:line that changes a weight first."""
    function: str
    """The function around that line."""
    lines: tuple[str, ...]
    """All lines of the update, as file:line, in their order."""
    tensors: int
    """The number of weights changed."""
    operators: int
    """The number of operators called for it."""


@dataclass(frozen=True)
class LoopSeen:
    """Measurements from inside while a window was recorded. Means per step."""

    step_s: float
    """Mean of the steps before the recording began, without evaluation: undisturbed."""
    steps: int
    early_step_s: float = 0.0
    """Median of the run's first steps except the very first; 0 if there were too few before
    these."""
    samples: float = 0.0
    """Samples per step."""
    wait_s: float = 0.0
    """Seconds of waiting for the loader."""
    loader_start_s: float | None = None
    """Mean time from iter(loader) to its first batch (worker start-up), or None if not seen."""
    epochs: int = 0
    """Loader passes begun while watched."""
    main_cpu_s: float | None = None
    """CPU time of this process, all threads."""
    worker_cpu_s: float | None = None
    """CPU time of loader workers."""
    gc_s: float = 0.0
    """Time in Python's garbage collector."""
    gc_runs: float = 0.0
    calls: tuple[CallSeen, ...] = ()
    input_shapes: int = 1
    """Distinct shapes of the model's first input."""
    memory_bytes: tuple[int, ...] = ()
    """Bytes in use after each watched step: of the accelerator, or of this process on a CPU."""
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    parameter_bytes: int | None = None
    """Bytes of all root models on the training device, including buffers."""
    optimizer_bytes: int | None = None
    """Bytes of the optimizers' state there, besides the weights."""
    alloc_retries: int = 0
    recompiles: tuple[str, ...] = ()
    """torch.compile's reasons for recompilations while watched, one each."""
    graph_breaks: tuple[str, ...] = ()
    """Graph breaks as torch reports them, with the user's line."""
    anomaly: bool = False
    anomaly_where: str | None = None
    """file:line that switches it on."""
    double_where: str | None = None
    """file:line that turns a whole model, or torch's default, to float64."""
    profiler: bool = False
    """Whether the script's own profiler is running."""
    profiler_where: str | None = None
    """file:line where the script starts it."""
    profiler_step_s: float | None = None
    """Mean step while it runs, if the others were measured without it."""
    debug_variables: tuple[str, ...] = ()
    """NAME=value."""
    tracers: tuple[str, ...] = ()
    """Tools that inspect each line or allocation of Python: tracemalloc, trace functions."""
    tracers_where: str | None = None
    """file:line that switches one of them on."""
    deterministic: bool = False
    eval_s: float = 0.0
    """Seconds of evaluation per step."""
    eval_where: str | None = None
    eval_called: str | None = None
    """file:line of the training loop that leads there."""
    eval_after_epoch: bool = False
    """Whether that line is outside the innermost training loop, after each iteration of it."""
    eval_every: float | None = None
    """Steps from one evaluation of a trained model to the next, or None if not seen twice."""
    eval_trained: bool = True
    """Whether a trained model is evaluated, not only a teacher or a target network."""
    backward_where: str | None = None
    optimizer_where: str | None = None
    update: UpdateSeen | None = None
    """The update, or None if optimizers step or the lines are unknown."""
    model_where: str | None = None
    """file:line where the script calls the model in training."""
    loader_where: str | None = None
    """file:line where the script iterates the loader."""
    checkpointing_where: str | None = None
    """file:line that switches on a library's activation checkpointing."""
    losses_kept: bool = False
    """Whether losses of past steps hold their graphs, so memory grows with each step."""
    flops: float | None = None
    """Operations of one step, counted with FlopCounterMode."""
    cores: CoresSeen | None = None
    flow: FlowSeen | None = None
    """Data flow of that step and the next, or None if not followed to the end."""
    trace: str = ""
    """Path of the trace recorded for times."""
    detail_trace: str = ""
    """Path of the trace with stacks, shapes and memory."""
    kind: str = "loop"
