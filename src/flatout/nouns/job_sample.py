"""JobSample: what one training job does at one moment. Unknown values are None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JobState = Literal["starting", "training", "tuning", "stalled", "ended", "foreign"]
"""starting: no step yet; stalled: HANG001 fires; foreign: not started by flatout, so its steps are
unknown."""


@dataclass(frozen=True)
class PulseStep:
    """One step of one rank, as its pulse reported it."""

    step: int
    """Counted from 1."""
    time_s: float
    """Unix time of its end."""
    duration_s: float
    wait_s: float | None
    """Seconds spent waiting, or None if unknown."""
    loss: float | None
    """The loss as computed, NaN and infinities included, or None if not read in this step."""
    samples: int | None
    flags: int = 0
    """`flatout_agent.wire.pulse`: EVALUATED, SAVED, COMPILED, TUNING, SKIPPED, EPOCH_BEGAN."""
    shapes: int | None = None
    """A number that is equal for steps with equal input shapes."""
    loss_scale: float | None = None
    own_s: float | None = None
    """Seconds until its backward pass began: work that waits for no other rank."""


@dataclass(frozen=True)
class RankSample:
    """One training process of a job."""

    rank: int
    pid: int
    step: int | None = None
    """Steps taken."""
    step_s: float | None = None
    """Median step time of the last 10 s (at least 5 steps)."""
    wait_share: float | None = None
    """Share of those steps spent waiting for the loader, 0 to 1."""
    samples_per_s: float | None = None
    loss: float | None = None
    """The last one read."""
    last_step_s: float | None = None
    """Unix time of the end of the last step."""
    cpu_cores: float | None = None
    """Cores used by the process and all that it started."""
    memory_bytes: int | None = None
    """Memory of the process and all that it started."""
    gpus: tuple[int, ...] = ()
    gpu_memory_bytes: int | None = None
    device: str | None = None
    """cpu, cuda, xpu, mps."""
    steps_lost: int | None = None
    """Steps that were missed because there were too many between two samples."""


@dataclass(frozen=True)
class JobSample:
    """One job, with its ranks on this machine."""

    id: str
    """Pid and start, `4711-83920`: stable while it runs."""
    state: JobState
    hostname: str
    program: str
    """As the user typed it: `train.py --epochs 10`."""
    pid: int
    """Pid of the program, or of the first process of a foreign job."""
    user: str | None = None
    folder: str | None = None
    """Its working folder."""
    run_folder: str | None = None
    """`.flatout/runs/...`, absolute: history, stacks, report."""
    began_s: float | None = None
    """Unix time of its start."""
    ended_s: float | None = None
    exit_code: int | None = None
    """As a shell shows it: 128 + N for signal N."""
    step: int | None = None
    """Step of the rank furthest behind."""
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
    """Time to the end, or None if the number of steps is unknown."""
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    boosts: tuple[str, ...] = ()
    """Boosts of its plan."""
    ranks: tuple[RankSample, ...] = ()
    recent_steps: tuple[PulseStep, ...] = ()
    """Steps of its lowest rank since the previous frame: at most 200, evenly chosen."""
