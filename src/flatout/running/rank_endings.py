"""Which rank of a run ended first, and by what: from what it recorded, wrote and returned."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from pathlib import Path

from flatout.running import rank_stacks
from flatout.running.process import log_tail
from flatout.running.processes import Process, Processes
from flatout_agent import wire

LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|remote process exited"
    r"|Connection was likely closed|Dist(?:Network|Store|Backend)Error.*Broken pipe",
    re.IGNORECASE,
)
"""An error that says that another rank is gone: a consequence, not the cause."""


class RankRecords:
    """What the processes of a run have recorded, by rank."""

    def __init__(self, records: Iterable[tuple[int, wire.Record]]) -> None:
        self._processes = Processes(records)

    def crash(self, rank: int, pid: int) -> str:
        """The traceback that ended the rank's program (process `pid`); empty: there is none."""
        own = self._processes.of(pid)
        candidates: list[Process | None] = [own] if own is not None and own.crashes else []
        candidates += [process for process in self._processes.all if process.rank == rank]
        texts = [process.crashes[-1] for process in candidates if process and process.crashes]
        return texts[0] if texts else ""


def is_consequence(crash: str, returncode: int) -> bool:
    """Whether it ended because another rank was gone."""
    return returncode == wire.LOST_EXIT or bool(LOST.search(_last_line(crash)))


def error_line(crash: str, returncode: int, log: Path | None) -> str:
    """By what it ended, in one line. log: its output; None: it wrote to the terminal."""
    if crash:
        return _last_line(crash)
    if returncode == wire.LOST_EXIT:
        return "it lost the others, or one of them did not answer in time"
    if returncode < 0:
        return f"killed by {_signal_name(-returncode)}"
    said = next(iter(log_tail(log, 1)), "").strip() if log is not None else ""
    return f"{said} (exit code {returncode})" if said else f"exit code {returncode}"


def place(crash: str) -> str | None:
    """Where in the user's code."""
    return rank_stacks.place_of_error(crash)


def _last_line(text: str) -> str:
    """The error itself: the first line of its message, which stands behind the frames."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(?::|$)", line)]
    return (named or lines or [""])[-1].strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
