"""From the agents' records while a program is profiled: how far it is, and what it took part in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Observer
from flatout.running.processes import Process, Processes
from flatout.running.records import Tail
from flatout_agent import wire

POLL_S = 0.1
PHASES = {
    "warmup": "waiting until step times are steady",
    "window": "watching undisturbed steps",
    "record": "recording steps for their times",
    "detail": "recording steps with stacks and shapes, for lines",
    "again": "waiting for the script's own profiler to end",
}
LEAST_STEPS = 20
"""Steps after which there is something to analyse, about."""


class Follower:
    """Reads records until all processes that train have told what they saw."""

    def __init__(self, records: Path, observer: Observer) -> None:
        self._tail = Tail(records)
        self._observer = observer
        self._processes = Processes()
        self._phase = ""

    def processes(self) -> list[Process]:
        """All that have reported, the lowest rank first."""
        return sorted(self._processes.all, key=lambda item: (item.rank, -item.step_count))

    def follow(self, alive: Callable[[], bool], measuring: Event) -> None:
        """`measuring` is set while steps are watched or recorded."""
        try:
            while alive():
                self._read(measuring)
                if self._processes.complete:
                    return
                time.sleep(POLL_S)
            self._read(measuring)
        finally:
            measuring.clear()

    def _read(self, measuring: Event) -> None:
        for pid, record in self._tail.new():
            process = self._processes.add(pid, record)
            if isinstance(record, wire.StepTaken) and process is self._processes.leading:
                self._tell(record, measuring)

    def _tell(self, step: wire.StepTaken, measuring: Event) -> None:
        if step.phase != self._phase and step.phase in PHASES:
            self._phase = step.phase
            self._observer.phase(PHASES[step.phase])
        if step.phase == "window":
            measuring.set()
        elif step.phase == "detail":
            measuring.clear()
        self._observer.step(step.index, step.phase, step.wall_s)


def leading(processes: Sequence[Process]) -> Process | None:
    """The lowest rank that has a trace."""
    traced = [item for item in processes if item.loop is not None and item.loop.trace]
    return min(traced, key=lambda item: (item.rank, -item.step_count), default=None)


def traces(processes: Sequence[Process]) -> tuple[Path, ...]:
    """The traces for times of all ranks."""
    return tuple(Path(item.loop.trace) for item in processes if item.loop and item.loop.trace)


def notes(
    processes: Sequence[Process], leading: Process, orders: wire.ProfileOrders
) -> tuple[str, ...]:
    """What could not be seen of the job, and why."""
    seen = leading.loop
    assert seen is not None
    told = []
    if seen.steps < orders.steps:
        told.append(f"the program ended early: {units.count(seen.steps, 'step')} recorded")
    if not seen.detail_trace:
        told.append("no step was recorded with stacks: findings of operators have no line")
    if orders.skip_s and leading.facts is not None and leading.facts.world_size > 1:
        told.append("--skip was left out: several ranks count steps, not seconds")
    if seen.debug_variables:
        told.append(f"set in the environment: {', '.join(seen.debug_variables)}")
    faults = dict.fromkeys(fault for item in processes for fault in item.faults)
    return (*told, *(f"inside flatout, the program was not touched: {fault}" for fault in faults))


def why_not(processes: Sequence[Process], returncode: int, followed: bool) -> UserError:
    """The error that tells why there is no profile, and what to do next."""
    if not followed:
        return UserError("flatout could write no orders, so nothing was recorded", exit_code=1)
    if not processes:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            " (python -I, -E and -S ignore PYTHONPATH)",
            "start the script without these options, or name the Python that runs it: --python",
            1,
        )
    if any(item.loop is not None and item.loop.profiler for item in processes):
        return UserError(
            "the script runs a profiler of its own all the time, and there can be only one",
            "take it out, or read its own trace: flatout profile FILE",
            1,
        )
    steps = max(item.step_count for item in processes)
    if returncode:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        did = f"after {units.count(steps, 'step')}" if steps else "before its first step"
        return UserError(
            f"the program failed {did} ({how}), before a window was recorded: "
            "its own message stands above",
            "make it run by itself first",
            1,
        )
    return _too_few(processes, steps)


def _too_few(processes: Sequence[Process], steps: int) -> UserError:
    faults = [fault for item in processes for fault in item.faults]
    if faults:
        return UserError(f"nothing was recorded: {'; '.join(faults)}", exit_code=1)
    if steps:
        return UserError(
            f"the program ended after {units.count(steps, 'step')}: too few for a profile, "
            f"which needs about {LEAST_STEPS}",
            "let it take more steps (more data or more epochs); --steps 2 records fewer",
            1,
        )
    did = "imported torch but took no optimizer step" if any(i.torch for i in processes) else (
        "never imported torch"
    )  # fmt: skip
    return UserError(f"the program {did}", "name the script that trains", 1)
