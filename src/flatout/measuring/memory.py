"""The device memory that a step of the user's program takes, from a short run of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from flatout.measuring import parallelism
from flatout.measuring.trial import OWN_EXIT_S, POLL_S, Bench, why_unmeasured
from flatout.nouns.errors import UserError
from flatout.nouns.memory_fit import MemoryFit, StrategyFit
from flatout.running.one import standard_input
from flatout.running.one.command import Command
from flatout.running.one.records import Processes, without_steps
from flatout.running.one.trial_process import (
    GIVE_INPUT,
    LOG,
    TrialProcess,
    start_trial,
    wants_input,
)
from flatout_agent import wire

VARIABLES = {"TORCHDYNAMO_DISABLE": "1"}
"""The memory of compiled code is invisible from outside; it is usually smaller."""
LOG_LINES = 12


def fit(command: Command, devices: parallelism.Devices, limit_s: float, folder: Path) -> MemoryFit:
    """Measure the program and tell on which of these devices it fits.

    Raises UserError if it takes no step within `limit_s` seconds.
    """
    began = time.monotonic()
    command = standard_input.given(command, folder)
    seen, notes = _measured(command, limit_s, folder)
    tried = parallelism.strategies(seen, devices)
    needs = [parallelism.need(seen, devices, strategy) for strategy in tried]
    chosen = parallelism.choice(needs)
    single = parallelism.need(
        seen, parallelism.Devices(1, devices.memory_bytes), parallelism.Strategy.DP
    )
    fixed, per_row = parallelism.line(seen.points, lambda point: point.activations_bytes)
    return MemoryFit(
        command=command.argv,
        model=seen.model,
        optimizer=seen.optimizer,
        measured_on=seen.device,
        measured_rows=tuple(point.rows for point in seen.points),
        batch_rows=seen.batch_rows,
        parameters_bytes=seen.parameters_bytes,
        buffers_bytes=seen.buffers_bytes,
        gradients_bytes=seen.gradients_bytes,
        state_bytes=seen.state_bytes,
        activations_fixed_bytes=round(fixed),
        activations_row_bytes=round(per_row),
        activations_bytes=single.activations,
        update_bytes=max(point.update_bytes for point in seen.points),
        peak_bytes=single.peak,
        devices=devices.count,
        nodes=devices.nodes,
        memory_bytes=devices.memory_bytes,
        strategies=tuple(
            StrategyFit(
                need.strategy.value,
                need.rows,
                parameters_bytes=need.parameters,
                gradients_bytes=need.gradients,
                state_bytes=need.state,
                activations_bytes=need.activations,
                peak_bytes=need.peak,
                margin_bytes=need.margin,
                fits=need.fits,
            )
            for need in needs
        ),
        chosen=chosen.strategy.value if chosen is not None else None,
        notes=(*notes, *_notes(seen)),
        run_folder=str(folder),
        wall_s=time.monotonic() - began,
    )


def devices(per_node: int, nodes: int, memory_bytes: int) -> parallelism.Devices:
    """`per_node` equal devices in each of `nodes` nodes."""
    return parallelism.Devices(per_node, memory_bytes, nodes)


@dataclass(frozen=True)
class _Ran:
    """One run of the program."""

    seen: wire.MemorySeen | None
    error: UserError
    """Why nothing was measured."""
    crashed: bool


def _measured(
    command: Command, limit_s: float, folder: Path
) -> tuple[wire.MemorySeen, tuple[str, ...]]:
    """From a run with small batches, or of the program as it is if it cannot train on those."""
    deadline = time.monotonic() + limit_s
    small = _run(command, wire.MemoryOrders(cut=True), deadline, folder / "small")
    if small.seen is not None:
        return small.seen, ()
    if not small.crashed:
        raise small.error
    whole = _run(command, wire.MemoryOrders(cut=False), deadline, folder / "whole")
    if whole.seen is None:
        raise whole.error
    reason = small.error.message.splitlines()[0]
    return whole.seen, (f"the script cannot train on a part of its batch ({reason})",)


def _run(command: Command, orders: wire.MemoryOrders, deadline: float, folder: Path) -> _Ran:
    bench = Bench(command, folder)
    trial = bench.trial_orders(folder, prepared=None)
    all_orders = wire.Orders(str(folder), trial=trial, memory=orders)
    limit_s = max(1.0, deadline - time.monotonic())
    processes, seen = Processes(), []
    with start_trial(command, all_orders, folder, bench.compile_cache, VARIABLES) as program:
        while program.alive and not processes.complete and time.monotonic() < deadline:
            seen += _collect(program, processes)
            time.sleep(POLL_S)
        late = program.alive and not processes.complete
        program.wait(0 if late else OWN_EXIT_S)
        seen += _collect(program, processes)
        returncode = program.returncode
        program.stop()
        error = _why(program, processes, late, limit_s, returncode, folder / LOG)
    most = max(seen, key=lambda found: len(found.points), default=None)
    return _Ran(most, error, crashed=bool(returncode))


def _collect(program: TrialProcess, processes: Processes) -> list[wire.MemorySeen]:
    found = []
    for pid, record in program.records():
        processes.add(pid, record)
        if isinstance(record, wire.MemorySeen):
            found.append(record)
    return found


def _why(
    program: TrialProcess,
    processes: Processes,
    late: bool,
    limit_s: float,
    returncode: int | None,
    log: Path,
) -> UserError:
    tail = "".join(f"\n  | {line}" for line in program.log_tail(LOG_LINES))
    if not processes.all:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            f" (python -I, -E and -S ignore PYTHONPATH){tail}",
            "start the script without these options, or name the Python that runs it: --python",
        )
    steps = max((process.step_count for process in processes.all), default=0)
    if steps == 0 and not late and not returncode:
        seen = (processes.torch_seen, processes.backwards, processes.children)
        activity, next_step = without_steps(*seen)
        return UserError(f"the program {activity}{tail}", next_step, 1)
    error = why_unmeasured(program, late, limit_s, returncode, steps)
    next_step = f"give it more time with --limit; its whole output: {log}" if late else ""
    if wants_input(program.log):
        next_step = GIVE_INPUT
    next_step = next_step or f"run it by itself first: it must train; its whole output: {log}"
    return UserError(f"the program cannot be measured: {error}{tail}", next_step, 1)


def _notes(seen: wire.MemorySeen) -> tuple[str, ...]:
    """What the reader should know about the figures."""
    notes = []
    if len(seen.points) == 1:
        notes.append(
            "activations were measured at one batch size and are taken to grow in proportion to it"
        )
    if not seen.blocks:
        notes.append("the model has no repeated blocks: recomputation, TP and PP do not apply")
    if seen.allocator_bytes is not None and seen.allocator_bytes > seen.tensors_bytes:
        beyond = seen.allocator_bytes / seen.tensors_bytes - 1
        notes.append(
            f"the device's allocator held {beyond:.0%} more than the tensors: workspaces of kernels"
        )
    return tuple(notes)
