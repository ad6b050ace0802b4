"""How the ranks of a run ended: which one was first and by what, and how they trained together."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Iterable
from pathlib import Path

from flatout.nouns.errors import UserError
from flatout.nouns.ranks import RANKS_TRIAL, ModelCut, RankFailure, RanksEnd, Scaling
from flatout.running.one.records import Processes
from flatout.running.one.trial_process import log_tail
from flatout_agent import wire

LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|remote process exited"
    r"|Connection was likely closed|Dist(?:Network|Store|Backend)Error.*Broken pipe",
    re.IGNORECASE,
)
"""In an error that says that another rank is gone: a consequence, not the cause."""


def crash(processes: Processes, rank: int, pid: int) -> str:
    """The traceback that ended the rank's program (process `pid`), or "" if there is none."""
    own = processes.of(pid)
    candidates = [own] if own is not None else []
    candidates += [process for process in processes.all if process.rank == rank]
    return next((process.crashes[-1] for process in candidates if process.crashes), "")


def is_consequence(crash: str, returncode: int) -> bool:
    """Whether a rank ended because another rank was gone."""
    return returncode == wire.LOST_EXIT or bool(LOST.search(_last_line(crash)))


def error_line(crash: str, returncode: int, log: Path | None) -> str:
    """What ended a rank, in one line. log: its output, or None if that went to the terminal."""
    if crash:
        return _last_line(crash)
    if returncode == wire.LOST_EXIT:
        return "it lost the others, or one of them did not answer in time"
    if returncode < 0:
        return f"killed by {_signal_name(-returncode)}"
    said = next(iter(log_tail(log, 1)), "").strip() if log is not None else ""
    return f"{said} (exit code {returncode})" if said else f"exit code {returncode}"


def _last_line(text: str) -> str:
    """The error itself: the first line of its message, which follows the frames."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(?::|$)", line)]
    return (named or lines or [""])[-1].strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def refusal(reason: str, next_step: str) -> UserError:
    """The error to raise when a rank has refused to train this job."""
    message = f"the ranks cannot train this script together: {reason}"
    return UserError(message, next_step or None, 1)


def ranks_end(
    records: Iterable[tuple[int, wire.Record]],
    size: int,
    failure: RankFailure | None = None,
    scaling: Scaling | None = None,
    native: str = "",
) -> RanksEnd:
    """How `size` ranks trained together, as recorded by the lowest rank that recorded it.

    native: the framework that divided the work itself.
    """
    told = [process for process in Processes(records).all if process.ranks is not None]
    seen = min(told, key=lambda process: process.rank).ranks if told else None
    if seen is None:
        return RanksEnd(size, scaling=scaling, failure=failure, native=native)
    return RanksEnd(
        size=seen.size,
        backend=seen.backend,
        models=models(seen),
        exchanged_bytes=seen.exchanged_bytes or None,
        exchange_s=seen.exchange_s or None,
        region_s=seen.region_s or None,
        gradient_error=seen.gradient_error,
        scaling=scaling,
        failure=failure,
        native=native,
    )


def models(seen: wire.RanksSeen) -> tuple[ModelCut, ...]:
    """Which models' batches are cut, and why the others are not."""
    return tuple(
        ModelCut(part.model, part.cut, part.reason, part.rows, part.error, part.random)
        for part in seen.regions
    )


def write_trial(scaling: Scaling, run_folder: Path) -> None:
    """Keep the trial that preceded a run in its folder. Raises OSError."""
    text = json.dumps(dataclasses.asdict(scaling), indent=2)
    partial = run_folder / f"{RANKS_TRIAL}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(run_folder / RANKS_TRIAL)
