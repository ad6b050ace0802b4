"""One program in a trial: started with its orders, followed through its records, ended for sure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from flatout.nouns import escapes
from flatout.nouns.errors import UserError
from flatout.running import environment, tree
from flatout.running.command import Command
from flatout.running.records import Tail
from flatout.running.watchdog import WATCHDOG
from flatout_agent import wire

GRACE_S = 3.0
"""Between asking a program to end and killing it: its workers remove their shared memory."""
GIVE_INPUT = "it asks for input: put the answers into a file, and end the line with < answers.txt"
"""What to do next where `wants_input`: each run that is measured reads the file from its start."""
TAIL_BYTES = 64 * 1024
LOG = "output.log"


class TrialProcess:
    """A running trial. Use it in a `with` statement: leaving that ends all that it started.

    It has its own session (own process group on Windows), reads a file or nothing as its input, and
    writes to a log. Should flatout itself be killed, the watchdog ends it.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        records: Path,
        log: Path,
        standard_input: Path | None = None,
    ) -> None:
        self.log = log
        self.tail = Tail(records)
        self._marker = env.get(wire.ORDERS_ENV, "")
        self._peak_bytes = 0
        self._stopped = False
        reads = standard_input or Path(os.devnull)
        with log.open("wb") as output, reads.open("rb") as source:
            streams = {"stdin": source, "stdout": output, "stderr": subprocess.STDOUT}
            self._process = start(argv, env, **streams, **_detached())
        WATCHDOG.watch(self._process.pid, self._marker, session=True)
        self._root = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N when signal N ended it."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self.returncode is None

    def records(self) -> Iterator[tuple[int, wire.Record]]:
        """(process id, record) for what the agents have written since the last call."""
        return self.tail.new()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the command to end by itself; its exit code, or None when it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def suspend(self) -> None:
        """Stop all its processes until `resume`: they take no time from others, but keep memory."""
        tree.suspend(self._family)

    def resume(self) -> None:
        tree.resume(self._family)

    def memory_bytes(self) -> int:
        """Most resident memory of all its processes together, as seen at the calls so far."""
        self._peak_bytes = max(self._peak_bytes, tree.memory_bytes(self._family()))
        return self._peak_bytes

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of its output as a terminal would show them, colours removed."""
        return log_tail(self.log, lines)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End every process that it started, wherever that has gone; return when they are gone."""
        if self._stopped:
            return
        tree.end(self._family, grace_s)
        if self._marker:
            tree.end(lambda: tree.marked(wire.ORDERS_ENV, self._marker), grace_s)
        self._process.wait()
        WATCHDOG.forget(self._process.pid)
        self._stopped = True

    def _family(self) -> list[psutil.Process]:
        self._process.poll()  # else it would stay a zombie
        return tree.family(self._root, session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_trial(
    command: Command,
    orders: wire.Orders,
    folder: Path,
    compile_cache: Path,
    boosts_environment: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> TrialProcess:
    """Write `orders` into `folder` and start the command under them; its log is there too.

    base: its environment without what is ours; None: that of flatout. Raises UserError where the
    command cannot be started, OSError where `folder` cannot be written.
    """
    folder = folder.absolute()
    path = write_orders(orders, folder)
    env = environment.for_trial(
        path,
        boosts_environment or {},
        orders.trial.seed if orders.trial is not None else 0,
        compile_cache.absolute(),
        base,
    )
    records, log = Path(orders.records), folder / LOG
    return TrialProcess(command.argv, env, records, log, command.input)


def end_all(folder: Path) -> None:
    """End what still runs under orders in `folder`.

    For an interrupt that came between the start of a program and its `with` statement.
    """
    marker = str(folder.absolute()) + os.sep
    tree.end(lambda: tree.marked(wire.ORDERS_ENV, marker), GRACE_S)


def write_orders(orders: wire.Orders, folder: Path) -> Path:
    """Make the folders of `orders` and write it to `folder`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    Path(orders.records).mkdir(parents=True, exist_ok=True)
    path = folder / "orders.json"
    path.write_text(wire.dump(orders) + "\n", encoding="utf-8")
    return path


def start(
    argv: tuple[str, ...], env: Mapping[str, str] | None, **options: Any
) -> subprocess.Popen[bytes]:
    """`subprocess.Popen`, with a refusal of the system turned into a UserError."""
    try:
        return subprocess.Popen(argv, env=env, **options)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = f"name the program that reads it, as in: flatout run -- bash {Path(argv[0]).name}"
        raise UserError(f"{argv[0]} cannot be started: {reason}", hint, 2) from error


def log_tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log as a terminal would show them, colours removed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    shown = (_as_shown(line) for line in text.split("\n"))
    return [line for line in shown if line.strip()][-lines:] if lines > 0 else []


def wants_input(log: Path) -> bool:
    """Whether it ended because it asked for input, and nobody gave any."""
    return any(line.startswith("EOFError: EOF when reading") for line in log_tail(log, 12))


def _as_shown(line: str) -> str:
    """A progress bar writes over itself after each carriage return: keep what is seen at last."""
    parts = [part for part in escapes.removed(line).split("\r") if part.strip()]
    return parts[-1].rstrip() if parts else ""


def _detached() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
