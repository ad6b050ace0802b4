"""Run one trial: the user's program, with the agent inside, until its window is complete."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flatout.knowledge import boosts as known
from flatout.measuring.outcome import LEAST_STEPS, Outcome, measured
from flatout.nouns.plan import PlannedBoost
from flatout.running.one.command import Command
from flatout.running.one.records import Processes
from flatout.running.one.trial_process import LOG, TrialProcess, start_trial
from flatout_agent import wire

POLL_S = 0.02
MEMORY_EVERY_S = 0.5
FIRST = "live-1"
"""Name of the first process of a tuning."""
QUIET_EXIT_S = 2.0
"""Seconds that the process may take to vanish after its last record."""
OWN_EXIT_S = 20.0
"""The same if the program ended by itself: its exit code tells why."""

StepSeen = Callable[[wire.StepTaken], None]


@dataclass(frozen=True)
class Bench:
    """Settings shared by all trials of one tuning."""

    command: Command
    folder: Path
    """Each trial has its own folder below this one."""
    seed: int = 0
    min_steps: int = 5
    max_steps: int = 50
    window_s: float = 3.0
    protect: Path = field(default_factory=Path.cwd)
    compile_cache: Path = field(default_factory=lambda: Path(".flatout/cache/inductor").absolute())
    ranks: wire.RankOrders | None = None
    """Orders for a group of one, which draws the same random numbers as a larger group."""
    variables: Mapping[str, str] | None = None
    """The program's environment without our variables, or None for flatout's."""
    crowded: bool = False
    """Whether two copies exceed the device's memory, so that they run one after the other."""

    @property
    def reference(self) -> Path:
        """The first process of all: it prepares files (data sets) that later ones find."""
        return self.folder / FIRST

    def with_windows(self, step_ms: float) -> Bench:
        """The same with windows of about a second for steps of `step_ms`.

        However short they are: fifty steps of 2 ms are over before a single disturbance is.
        """
        steps = max(2, math.ceil(500 / step_ms))
        few, many = min(self.min_steps, steps), max(self.max_steps, 2 * steps)
        return dataclasses.replace(self, min_steps=few, max_steps=many, window_s=1.0)

    def trial_orders(self, folder: Path, **changes: object) -> wire.TrialOrders:
        """The common initial orders of all trials."""
        settings = {
            "seed": self.seed,
            "min_steps": self.min_steps,
            "max_steps": self.max_steps,
            "window_s": self.window_s,
            "scratch": str(folder / "scratch"),
            "prepared": None
            if folder == self.reference
            else str(self.reference / "scratch" / "prepared"),
            "protect": str(self.protect),
        }
        return wire.TrialOrders(**{**settings, **changes})  # type: ignore[arg-type]

    def program(
        self,
        name: str,
        boosts: tuple[PlannedBoost, ...],
        facts: wire.JobFacts | None,
        record: wire.ProfileOrders | None = None,
        live: wire.LiveOrders | None = None,
        **changes: object,
    ) -> TrialProcess:
        """Start the user's program as the trial `name`.

        `record`: to be profiled, not timed; `live`: to be tuned while it trains. Raises ValueError
        if a trial has that name already: its records would be mistaken for this one's.
        """
        folder = self.folder / name
        if any(folder.glob("*.jsonl")):
            raise ValueError(f"there was a trial {name} already, in {folder}")
        orders = wire.Orders(
            records=str(folder),
            boosts=tuple(wire.BoostOrder(boost.id, boost.params) for boost in boosts),
            trial=self.trial_orders(folder, **changes),
            profile=record,
            live=live,
            ranks=self.ranks,
        )
        variables: dict[str, str] = {}
        for boost in boosts:
            if facts is not None:
                variables.update(known.get(boost.id).environment(facts, boost.params))
        caches = self.compile_cache, variables, self.variables
        return start_trial(self.command, orders, folder, *caches)


def run(
    bench: Bench,
    name: str,
    boosts: tuple[PlannedBoost, ...],
    facts: wire.JobFacts | None,
    limit_s: float,
    on_step: StepSeen = lambda step: None,
    **changes: object,
) -> Outcome:
    """One trial from start to end. A crash, a hang or a lack of memory is an outcome too."""
    began = time.monotonic()
    processes = Processes()
    with bench.program(name, boosts, facts, **changes) as program:  # type: ignore[arg-type]
        late = _follow(program, processes, on_step, began + limit_s)
        returncode, peak = program.returncode, program.memory_bytes()
        program.stop()
        leading = processes.leading
        ended = leading.ended if leading is not None else None
        window = [step for step in leading.steps if step.phase == "window"] if leading else []
        ended_well = not returncode and len(window) >= LEAST_STEPS
        is_complete = ended is not None and (ended.reason == "window" or ended_well)
        error = None
        if late or not is_complete:
            steps = leading.step_count if leading is not None else 0
            error = why_unmeasured(program, late, limit_s, returncode, steps)
    world = len(processes.training) or 1
    figures = measured(leading, peak, world) if leading is not None and error is None else None
    return Outcome(
        process=leading,
        measured=figures,
        error=error or (None if figures else "too few steps to measure"),
        torch_seen=processes.torch_seen,
        agent_seen=bool(processes.all),
        returncode=returncode,
        log=str(bench.folder / name / LOG),
        wall_s=time.monotonic() - began,
        redirected=processes.redirected,
        faults=processes.faults,
        late=late and error is not None,
        backwards=processes.backwards,
        children=processes.children,
        native=next((seen.native for seen in processes.all if seen.native is not None), None),
    )


def _follow(
    program: TrialProcess, processes: Processes, on_step: StepSeen, deadline: float
) -> bool:
    """Read records until the trial is complete or the program ends; True at the deadline."""
    sampled = 0.0
    while program.alive and not processes.complete:
        _collect(program, processes, on_step)
        now = time.monotonic()
        if now > deadline:
            return True
        if now - sampled > MEMORY_EVERY_S:
            program.memory_bytes()
            sampled = now
        time.sleep(POLL_S)
    stopped_by_order = all(
        process.ended.reason == "window" for process in processes.all if process.ended
    )
    program.wait(QUIET_EXIT_S if stopped_by_order else min(OWN_EXIT_S, deadline - time.monotonic()))
    _collect(program, processes, on_step)
    return False


def _collect(program: TrialProcess, processes: Processes, on_step: StepSeen) -> None:
    for pid, record in program.records():
        process = processes.add(pid, record)
        if isinstance(record, wire.StepTaken) and process is processes.leading:
            on_step(record)


def why_unmeasured(
    program: TrialProcess, late: bool, limit_s: float, returncode: int | None, steps: int
) -> str:
    """Why a process gave no measurement, in one line.

    late: whether it was stopped at its limit; steps: those that it took.
    """
    if late:
        return f"stopped after {limit_s:.0f} s with {steps} steps taken"
    lines = [line.strip() for line in program.log_tail(20) if line.strip(" ^~|\t")]
    tail = lines[-1] if lines else ""
    if returncode:
        ending = f"killed by signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        return f"{tail} ({ending})" if tail else ending
    return f"the program ended by itself after {steps} steps: too few to measure"
