"""One program in a trial: started with its orders, followed by its records, surely ended."""

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
from flatout.running.one import environment, tree
from flatout.running.one.command import Command
from flatout.running.one.records import Tail
from flatout.running.one.watchdog import WATCHDOG
from flatout_agent import wire

GRACE_S = 3.0
"""Between asking a program to end and killing it: its workers must free their shared memory."""
GIVE_INPUT = (
    "it asks for input: put the answers into a file and append < answers.txt to the command"
)
"""What to do next if a program `wants_input`: each run reads the file from its start."""
TAIL_BYTES = 64 * 1024
LOG = "output.log"


class TrialProcess:
    """A running trial. Use it in a `with` statement, whose end ends all that the trial started.

    It has its own session (own process group on Windows), reads a file or nothing as its input, and
    writes to a log. If flatout itself is killed, the watchdog ends it.
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
        detached: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            detached = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        with log.open("wb") as output, reads.open("rb") as source:
            streams = {"stdin": source, "stdout": output, "stderr": subprocess.STDOUT}
            self._process = start(argv, environment.for_log(env), **streams, **detached)
        WATCHDOG.watch(self._process.pid, self._marker, session=True)
        self._root = tree.found(self._process.pid)
        """None if it has ended already: Windows keeps nothing of it."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N if signal N ended it."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self.returncode is None

    def records(self) -> Iterator[tuple[int, wire.Record]]:
        """(process id, record) for each record since the last call."""
        return self.tail.new()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the command to end; returns its exit code, or None if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def suspend(self) -> None:
        """Pause all its processes until `resume`: they use no time, but keep their memory."""
        tree.suspend(self._family)

    def resume(self) -> None:
        tree.resume(self._family)

    def memory_bytes(self) -> int:
        """The most resident memory of all its processes together at any call so far."""
        self._peak_bytes = max(self._peak_bytes, tree.memory_bytes(self._family()))
        return self._peak_bytes

    def cpu_s(self) -> float:
        """Seconds of cores that all its processes have used so far."""
        return tree.cpu_s(self._family())

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of its output as a terminal would show them, without colours."""
        return log_tail(self.log, lines)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End every process that it started, in any session; returns when they are gone."""
        if self._stopped:
            return
        tree.end(self._family, grace_s)
        if self._marker:
            tree.end(lambda: tree.marked(wire.ORDERS_ENV, self._marker), grace_s)
        self._process.wait()
        WATCHDOG.forget(self._process.pid)
        self._stopped = True

    def _family(self) -> list[psutil.Process]:
        self._process.poll()  # otherwise it would stay a zombie
        return [] if self._root is None else tree.family(self._root, session=True)

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
    """Write `orders` into `folder` and start the command with them; its log is there too.

    base: the environment to add ours to, that of flatout if None. Raises UserError if the command
    cannot be started, OSError if `folder` cannot be written.
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
    """End what still runs with orders in `folder`.

    For an interrupt between the start of a program and its `with` statement.
    """
    marker = str(folder.absolute()) + os.sep
    tree.end(lambda: tree.marked(wire.ORDERS_ENV, marker), GRACE_S)


def write_orders(orders: wire.Orders, folder: Path) -> Path:
    """Write `orders` into `folder`, which is made with that of the records; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    Path(orders.records).mkdir(parents=True, exist_ok=True)
    path = folder / "orders.json"
    path.write_text(wire.dump(orders) + "\n", encoding="utf-8")
    return path


def start(
    argv: tuple[str, ...], env: Mapping[str, str] | None, **options: Any
) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` that raises UserError if the system refuses."""
    try:
        return subprocess.Popen(argv, env=env, **options)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = f"name the program that reads it, as in: flatout run -- bash {Path(argv[0]).name}"
        raise UserError(f"{argv[0]} cannot be started: {reason}", hint, 2) from error


def log_tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log as a terminal would show them, without colours."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    shown = (_as_shown(line) for line in text.split("\n"))
    return [line for line in shown if line.strip()][-lines:] if lines > 0 else []


def wants_input(log: Path) -> bool:
    """Whether the program ended because it asked for input and there was none."""
    return any(line.startswith("EOFError: EOF when reading") for line in log_tail(log, 12))


def _as_shown(line: str) -> str:
    """A progress bar overwrites itself after each carriage return: keep what is seen last."""
    parts = [part for part in escapes.removed(line).split("\r") if part.strip()]
    return parts[-1].rstrip() if parts else ""
