"""The part of the contract between host and agent that is about profiles; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass

from flatout_agent.wire.flow import FlowSeen
from flatout_agent.wire.host import CoresSeen

SHORT_RUN = 150
"""Steps of a whole run from which on no phase of a profile has to be shortened."""


@dataclass(frozen=True)
class ProfileOrders:
    """Record a window of the running program, then let it go on or stop it."""

    skip_s: float = 0.0
    """Wait this long before steady state is looked for."""
    steps: int = 6
    """Steps recorded for their times, without stacks."""
    detail_steps: int = 2
    """Steps recorded afterwards with stacks, shapes and memory, for lines and not for times."""
    stop: bool = False
    """End the program once the window is recorded; else it goes on, unwatched."""
    warmup_max_s: float = 60.0
    known_steps: int | None = None
    """Steps that the whole program takes, where an earlier run has shown it to be short."""
    without_profiler: bool = False
    """Profilers that the script itself starts record nothing: in a run of its own."""


@dataclass(frozen=True)
class CallSeen:
    """A Python call that a loop should not make, or not in each step."""

    name: str
    """torch.save, print, Tensor.item, torch.cuda.empty_cache, Module(), Optimizer(), open.

    hook: one that was registered and is still there.
    """
    calls: float
    """Per step."""
    s: float
    """Seconds per step."""
    where: str | None = None
    """file:line of the user's code."""
    detail: str = ""
    """For people: the device, the class of what was made, the file that was opened."""
    files: int | None = None
    """Distinct files that a process opened here, where it opens the same ones again and again."""
    in_worker: bool = False
    """The calls of all loader workers together."""


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
    """Weights that are changed."""
    operators: int
    """That are called for it."""


@dataclass(frozen=True)
class LoopSeen:
    """What was measured from inside while a window was recorded. Means per step."""

    step_s: float
    """Mean of the steps before the recording began, without evaluation: undisturbed."""
    recorded_step_s: float
    """The same of those that were recorded for their times."""
    steps: int
    early_step_s: float = 0.0
    """Median of the run's first steps but the very first; 0: they were too few before these."""
    samples: float = 0.0
    """Per step."""
    wait_s: float = 0.0
    """For the loader."""
    loader_start_s: float | None = None
    """Mean time from iter(loader) to its first batch: worker start-up; None: not seen."""
    epochs: int = 0
    """Loader passes begun while watched."""
    main_cpu_s: float | None = None
    """CPU time of this process, all threads."""
    worker_cpu_s: float | None = None
    """CPU time of loader workers."""
    gc_s: float = 0.0
    """In Python's garbage collector."""
    gc_runs: float = 0.0
    calls: tuple[CallSeen, ...] = ()
    input_shapes: int = 1
    """Distinct shapes of the model's first input."""
    memory_bytes: tuple[int, ...] = ()
    """In use after each watched step: of the accelerator, on a CPU of this process."""
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    parameter_bytes: int | None = None
    """Of all root models on the device that trains, buffers included."""
    optimizer_bytes: int | None = None
    """Bytes of the optimizers' state there, besides the weights."""
    alloc_retries: int = 0
    recompiles: tuple[str, ...] = ()
    """torch.compile's reasons, one each, while watched."""
    graph_breaks: tuple[str, ...] = ()
    """With the user's line, as torch reports them."""
    anomaly: bool = False
    anomaly_where: str | None = None
    """file:line that switches it on."""
    double_where: str | None = None
    """file:line that turns a whole model, or torch's default, to float64."""
    profiler: bool = False
    """A profiler of the script's own is running."""
    profiler_where: str | None = None
    """file:line where the script starts it."""
    profiler_step_s: float | None = None
    """Mean step while it runs, where the others were taken without it."""
    debug_variables: tuple[str, ...] = ()
    """NAME=value."""
    tracers: tuple[str, ...] = ()
    """What looks at each line or allocation of Python: tracemalloc, trace functions."""
    tracers_where: str | None = None
    """file:line that switches one of them on."""
    deterministic: bool = False
    eval_s: float = 0.0
    """In evaluation, per step."""
    eval_where: str | None = None
    eval_called: str | None = None
    """file:line of the training loop that leads there."""
    eval_after_epoch: bool = False
    """That line stands outside of the innermost of the training's loops: after each turn of it."""
    eval_every: float | None = None
    """Steps from one evaluation of a model that is trained to the next; None: not seen twice."""
    eval_trained: bool = True
    """A model that is trained is evaluated, not only a teacher or a target network."""
    backward_where: str | None = None
    optimizer_where: str | None = None
    update: UpdateSeen | None = None
    """None: optimizers step, or the lines are not known."""
    model_where: str | None = None
    """file:line where the script calls the model in training."""
    loader_where: str | None = None
    """file:line where the script iterates the loader."""
    single_loader_where: str | None = None
    """file:line that makes the one DataLoader of single samples."""
    checkpointing_where: str | None = None
    """file:line that switches on a library's activation checkpointing."""
    unused_forwards: float = 0.0
    """Training calls of the model without a backward pass from what they returned."""
    losses_kept: bool = False
    """Losses of past steps hold their graphs: memory grows by step."""
    losses_where: str | None = None
    flops: float | None = None
    """FlopCounterMode on one step."""
    cores: CoresSeen | None = None
    flow: FlowSeen | None = None
    """Data flow of that step and the next; None: not followed, or not to its end."""
    trace: str = ""
    """Path of the trace recorded for times."""
    detail_trace: str = ""
    """Path of the one with stacks, shapes and memory."""
    kind: str = "loop"
