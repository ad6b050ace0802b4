"""The agents' records while a program is profiled: its progress, and what it recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from flatout.nouns import units
from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.nouns.observer import Observer
from flatout.running.one.foreground import Finished
from flatout.running.one.records import (
    Process,
    Processes,
    Tail,
    backwards_and_children,
    without_steps,
)
from flatout_agent import wire

POLL_S = 0.1
PHASES = {
    "warmup": "waiting until step times are steady",
    "window": "watching undisturbed steps",
    "sample": "sampling which lines the host executes",
    "record": "recording steps for their times",
    "detail": "recording steps with stacks and shapes, for lines",
    "again": "waiting for the script's own profiler to end",
}
LEAST_STEPS = 8
"""Fewest steps of a whole run with which it can be analysed when it is run again."""


class Follower:
    """Reads records until all training processes have reported."""

    def __init__(self, records: Path, observer: Observer) -> None:
        self._tail = Tail(records)
        self._observer = observer
        self._processes = Processes()
        self._phase = ""

    def processes(self) -> list[Process]:
        """All processes that have reported, the lowest rank first."""
        return sorted(self._processes.all, key=lambda process: (process.rank, -process.step_count))

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
                if record.phase != self._phase and record.phase in PHASES:
                    self._phase = record.phase
                    self._observer.phase(PHASES[record.phase])
                if record.phase == "window":
                    measuring.set()
                elif record.phase == "detail":
                    measuring.clear()
                self._observer.step(record.index, record.phase, record.wall_s)


def leading(processes: Sequence[Process]) -> Process | None:
    """The process of the lowest rank that has a trace."""
    traced = [process for process in processes if process.loop is not None and process.loop.trace]
    return min(traced, key=lambda process: (process.rank, -process.step_count), default=None)


def profiled_throughout(processes: Sequence[Process]) -> wire.LoopSeen | None:
    """The loop in which the script's own profiler was on when it should have been recorded.

    None if there was no such profiler or there is a trace.
    """
    if leading(processes) is not None:
        return None
    loops = [process.loop for process in processes if process.loop is not None]
    return next((loop for loop in loops if loop.profiler), None)


def ended_early(processes: Sequence[Process]) -> bool:
    """Whether a program came to its own end before it was recorded completely."""
    endings = [process.ended for process in processes if process.ended is not None]
    return any(ended.reason == "program" and ended.steps for ended in endings)


def traces(processes: Sequence[Process]) -> tuple[Path, ...]:
    """The traces of times, of all ranks."""
    return tuple(
        Path(process.loop.trace) for process in processes if process.loop and process.loop.trace
    )


def notes(
    processes: Sequence[Process], main_process: Process, orders: wire.ProfileOrders
) -> tuple[str, ...]:
    """What could not be recorded of the job, and why."""
    loop = main_process.loop
    assert loop is not None
    remarks = []
    if orders.known_steps is not None and not orders.without_profiler:
        steps = units.count(orders.known_steps, "step")
        remarks.append(
            f"the program takes {steps} in all, {loop.steps} of them recorded, in a second run"
        )
    elif loop.steps < orders.steps:
        remarks.append(f"the program ended early: {units.count(loop.steps, 'step')} recorded")
    if not loop.detail_trace:
        remarks.append("no step was recorded with stacks: findings of operators have no line")
    if orders.skip_s and main_process.facts is not None and main_process.facts.world_size > 1:
        remarks.append("--skip was ignored: several ranks count steps, not seconds")
    if loop.debug_variables:
        remarks.append(f"set in the environment: {', '.join(loop.debug_variables)}")
    faults = dict.fromkeys(fault for process in processes for fault in process.faults)
    return (
        *remarks,
        *(f"inside flatout, the program was not touched: {fault}" for fault in faults),
    )


def why_not(processes: Sequence[Process], ended: Finished) -> UserError:
    """The error that says why there is no profile, and what to do next."""
    if not ended.followed:
        return UserError("flatout could write no orders, so nothing was recorded", exit_code=1)
    steps = max((process.step_count for process in processes), default=0)
    progress = f"after {units.count(steps, 'step')}" if steps else "before its first step"
    if ended.interrupted:
        message = f"interrupted {progress}, before a window was recorded"
        return UserError(message, exit_code=INTERRUPTED)
    if not processes:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            " (python -I, -E and -S ignore PYTHONPATH)",
            "start the script without these options, or name the Python that runs it: --python",
            1,
        )
    profiled = profiled_throughout(processes)
    if profiled is not None:
        where = f" ({profiled.profiler_where})" if profiled.profiler_where else ""
        return UserError(
            f"the script's own profiler{where} runs all the time, and only one can be active",
            "let it record some steps and stop, with schedule=torch.profiler.schedule(wait=10, "
            "warmup=2, active=3, repeat=1), or read its trace: flatout profile trace.json",
            1,
        )
    if code := ended.returncode:
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        return UserError(
            f"the program failed {progress} ({ending}), before a window was recorded: "
            "its own message is above",
            "make it run by itself first",
            1,
        )
    faults = [fault for process in processes for fault in process.faults]
    if faults:
        return UserError(f"nothing was recorded: {'; '.join(faults)}", exit_code=1)
    if steps >= LEAST_STEPS:
        return UserError(
            f"the program took {units.count(steps, 'step')} and ended before they were recorded, "
            "also when it was run again",
            "let it take more steps (more data or more epochs)",
            1,
        )
    if steps:
        return UserError(
            f"the program ended after {units.count(steps, 'step')}: too few for a profile, "
            f"which needs at least {LEAST_STEPS}",
            "let it take more steps (more data or more epochs)",
            1,
        )
    torch_seen = any(process.torch for process in processes)
    activity, cure = without_steps(torch_seen, *backwards_and_children(processes))
    return UserError(f"the program {activity}", cure, 1)
