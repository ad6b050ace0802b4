"""JobSample: what one training job does at one moment. What is not known is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JobState = Literal["starting", "training", "tuning", "stalled", "ended", "foreign"]
"""starting: no step yet; stalled: HANG001 fires; foreign: not started by flatout, so its steps are
not known."""


@dataclass(frozen=True)
class PulseStep:
    """One step of one rank, as its pulse told it."""

    step: int
    """From 1."""
    time_s: float
    """Unix time of its end."""
    duration_s: float
    wait_s: float | None
    """None: not known."""
    loss: float | None
    """None: not read in this step. NaN and infinities are as the program computed them."""
    samples: int | None
    flags: int = 0
    """`flatout_agent.wire.pulse`: EVALUATED, SAVED, COMPILED, TUNING, SKIPPED, EPOCH_BEGAN."""
    shapes: int | None = None
    """Equal for steps with inputs of equal shapes."""
    loss_scale: float | None = None
    own_s: float | None = None
    """Of its duration, until its backward pass began: work that waits for no other rank."""


@dataclass(frozen=True)
class RankSample:
    """One training process of a job."""

    rank: int
    pid: int
    step: int | None = None
    """Steps taken."""
    step_s: float | None = None
    """Median of the steps of the last 10 s (at least 5 steps)."""
    wait_share: float | None = None
    """Of those steps, the share spent waiting for the loader, 0 to 1."""
    samples_per_s: float | None = None
    loss: float | None = None
    """The last one read."""
    last_step_s: float | None = None
    """Unix time of the end of the last step."""
    cpu_cores: float | None = None
    """Of the process with all that it started."""
    memory_bytes: int | None = None
    """Of the process with all that it started."""
    gpus: tuple[int, ...] = ()
    gpu_memory_bytes: int | None = None
    device: str | None = None
    """cpu, cuda, xpu, mps."""
    steps_lost: int | None = None
    """Steps that were not seen: they were too many between two looks."""


@dataclass(frozen=True)
class JobSample:
    """One job; its ranks on this machine."""

    id: str
    """Stable while it runs: pid and start, `4711-83920`."""
    state: JobState
    hostname: str
    program: str
    """As the user typed it: `train.py --epochs 10`."""
    pid: int
    """Of the program (of a foreign job: of its first process)."""
    user: str | None = None
    folder: str | None = None
    """Its working folder."""
    run_folder: str | None = None
    """`.flatout/runs/...`, absolute: history, stacks, report."""
    began_s: float | None = None
    """Unix time."""
    ended_s: float | None = None
    exit_code: int | None = None
    """As a shell shows it: 128 + N for signal N."""
    step: int | None = None
    """Of the rank that is least far."""
    steps_expected: int | None = None
    step_s: float | None = None
    """Median over the ranks."""
    samples_per_s: float | None = None
    """All ranks together."""
    wait_share: float | None = None
    """Mean of the ranks."""
    loss: float | None = None
    """Mean of the ranks."""
    left_s: float | None = None
    """Time to the end, where the number of steps is known."""
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    boosts: tuple[str, ...] = ()
    """Those of its plan."""
    ranks: tuple[RankSample, ...] = ()
    recent_steps: tuple[PulseStep, ...] = ()
    """Of its least rank: the steps since the frame before, at most 200 of them, evenly chosen."""
