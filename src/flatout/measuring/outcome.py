"""The figures of one process, from its records."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.trial import Measurement
from flatout.running.one.records import Process
from flatout_agent import wire

LEAST_STEPS = 3
"""With fewer measured steps there is no measurement."""


@dataclass(frozen=True)
class Outcome:
    """The finished process of one trial."""

    process: Process | None
    """The leading training process, or None if no process took a step."""
    measured: Measurement | None
    error: str | None
    """Why there is no measurement, in one line."""
    torch_seen: bool
    agent_seen: bool
    returncode: int | None
    log: str
    wall_s: float
    redirected: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    late: bool = False
    """Whether it was stopped at its time limit."""
    backwards: int = 0
    """Backward passes of a program that took no step."""
    children: int = 0
    """The number of processes that it started itself."""
    native: wire.NativeSeen | None = None
    """Set if the program can also train on several processes."""

    @property
    def notes(self) -> dict[str, wire.BoostNote]:
        """The fate of each boost in the leading process."""
        return self.process.notes if self.process is not None else {}


def measured(process: Process, peak_bytes: int | None, world: int = 1) -> Measurement | None:
    """The window's figures, or None if too few steps were taken."""
    window = [step for step in process.steps if step.phase == "window"]
    if len(window) < LEAST_STEPS:
        return None
    times = [step.train_s for step in window]
    total = sum(times)
    steady_s = total / len(window)
    early = [step.train_s for step in process.steps if step.phase != "window"]
    samples = sum(step.samples for step in window) * world
    ended = process.ended
    return Measurement(
        step_ms=1000 * total / len(window),
        samples_per_s=samples / total if samples else None,
        steps_ms=tuple(1000 * time for time in times),
        losses=process.losses,
        wait_share=min(1.0, sum(step.wait_s for step in window) / total),
        # Beyond that of as many steady steps: mostly compilation.
        compile_s=sum(time - steady_s for time in early if time > 2 * steady_s),
        peak_bytes=ended.peak_bytes if ended and ended.peak_bytes is not None else peak_bytes,
        recompiles=ended.recompiles if ended else 0,
        graph_breaks=ended.graph_breaks if ended else 0,
    )
