"""Take the model and real inputs out of a script: while it trains as written, or in a short trial.

Without a checkpoint the user wants the weights that the script trains: it runs to its end, in the
foreground, with its files. With a checkpoint it is a trial: none of its files reach the user's, its
epochs are cut short, and it is ended once its evaluation has been seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flatout.measuring.trial import OWN_EXIT_S, POLL_S, Bench
from flatout.nouns.captured import Capture, CaptureRequest
from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.running.one import folder as folders
from flatout.running.one import foreground, standard_input
from flatout.running.one.command import Command
from flatout.running.one.records import Processes
from flatout.running.one.trial_process import (
    GIVE_INPUT,
    LOG,
    start_trial,
    wants_input,
)
from flatout_agent import wire

NO_AGENT = (
    "no Python process under this command loaded flatout's agent (python -I, -E and -S ignore"
    " PYTHONPATH)"
)
USE_PYTHON = "start the script without these options, or name the Python that runs it: --python"
TRIES = "first make sure that the script runs to its end by itself"
LOG_LINES = 12
Warn = Callable[[str], None]


def orders(model: str = "") -> wire.ExportOrders:
    """The agent's orders for a script that runs to its end."""
    return wire.ExportOrders(model=model)


def capture(command: Command, request: CaptureRequest, warn: Warn) -> Capture:
    """Run the script and capture its model. Raises UserError with the reason if that fails."""
    if request.weights:
        return _trial(command, request)
    ended = foreground.run(
        command, (), {}, warn, stdout_to_stderr=request.beside, export=orders(request.model)
    )
    if ended.interrupted:
        raise UserError("interrupted: the model is not exported", exit_code=INTERRUPTED)
    if ended.returncode:
        raise UserError(
            f"the script ended with exit code {ended.shell_code}: its model is not exported",
            TRIES,
            1,
        )
    if not ended.followed:
        raise UserError("flatout found no folder that it can write to", "set TMPDIR", 1)
    return _found(Processes(ended.records))


def _found(processes: Processes) -> Capture:
    """The last capture of all processes. Raises UserError with the reason why there is none."""
    seen = [process.export for process in processes.all if process.export is not None]
    if seen:
        last = seen[-1]
        folder = Path(last.folder)
        return Capture(folder, last.model, last.source, last.samples, last.seconds, last.notes)
    if not processes.all:
        raise UserError(NO_AGENT, USE_PYTHON)
    if not processes.torch_seen:
        message = "the script never imported torch: there is no model to export"
        raise UserError(message, "name the script that trains the model", 1)
    refused = [p.export_refused for p in processes.all if p.export_refused is not None]
    if not refused:
        message = "the script ended before its model could be taken (killed, or os._exit)"
        raise UserError(message, "let it end by itself, or by sys.exit(0)", 1)
    # A launcher, or another process without a model, says least.
    lacking = "the script called no model"
    best = max(refused, key=lambda one: (bool(one.where), not one.reason.startswith(lacking)))
    raise UserError(f"the model cannot be exported: {best.reason}", best.cure or None, 1)


# With a checkpoint --------------------------------------------------------------------------------


def _trial(command: Command, request: CaptureRequest) -> Capture:
    path, _, key = request.weights.partition("#")
    weights = Path(path).absolute()
    if not weights.exists():
        raise UserError(f"there is no checkpoint {path}", "name the file that it is in: --weights")
    run_folder = folders.fresh("export").absolute()
    bench = Bench(standard_input.given(command, run_folder), run_folder)
    export = wire.ExportOrders(
        folder=str(run_folder / "capture"),
        model=request.model,
        weights=str(weights),
        weights_key=key,
        after_steps=request.epoch_steps,
    )
    trial = bench.trial_orders(run_folder, prepared=None)
    all_orders = wire.Orders(str(run_folder / "records"), trial=trial, export=export)
    processes = Processes()
    with start_trial(bench.command, all_orders, run_folder, bench.compile_cache) as program:
        deadline, late = time.monotonic() + request.limit_s, False
        while program.alive and not any(process.export is not None for process in processes.all):
            _add(processes, program.records())
            if late := time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        program.wait(0 if late else OWN_EXIT_S)
        _add(processes, program.records())
        returncode = program.returncode
        program.stop()
        tail = "".join(f"\n  | {line}" for line in program.log_tail(LOG_LINES))
    if not any(process.export or process.export_refused for process in processes.all):
        if late:
            raise UserError(
                f"no evaluation of a model was seen within {request.limit_s:.0f} s{tail}",
                f"give it more time with --limit; its whole output: {run_folder / LOG}",
                1,
            )
        if returncode:
            step = GIVE_INPUT if wants_input(run_folder / LOG) else TRIES
            raise UserError(f"the script ended with exit code {returncode}{tail}", step, 1)
    return _found(processes)


def _add(processes: Processes, records: Iterable[tuple[int, wire.Record]]) -> None:
    for pid, record in records:
        processes.add(pid, record)
