"""The user's program in the foreground, as if flatout were not there, with the agent inside.

The program stays in flatout's own process group and keeps its standard streams, so a terminal
treats both as one job: Ctrl-C and Ctrl-Z reach the program from the terminal itself, and flatout
only waits. A signal sent to flatout alone is passed on. SIGINT may be either: `interrupts` tells.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.running import environment, folder
from flatout.running.command import Command
from flatout.running.interrupts import Witness
from flatout.running.process import start, write_orders
from flatout.running.records import Tail
from flatout.running.watchdog import WATCHDOG
from flatout_agent import wire

T = TypeVar("T")
Warn = Callable[[str], None]
Meanwhile = Callable[[Path, subprocess.Popen[bytes]], None]
"""What flatout does while the program runs: given the folder of its records, and the program."""


class OtherRanks(Protocol):
    """The processes that train one job together with the program, which is rank 0."""

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """Orders of rank 0, from those of a program that trains alone."""

    def log(self) -> Path | None:
        """Where the program's output goes, which then has no input; None: to the terminal."""

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """That of rank 0, from that of a program that trains alone."""

    def follow(self, process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
        """Start the others, follow all to their ends; rank 0 has ended or is ended then."""

    def signal(self, number: int) -> None:
        """Rank 0 has had this signal."""

    def returncode(self, own: int) -> int:
        """What the run ends with; own: rank 0's exit code."""


class ProgramWatch(Protocol):
    """What watches the program while it runs. Nothing that it raises reaches the program."""

    def prepare(self, run_folder: Path) -> str:
        """Before the program starts; the folder for rings, or "" for none."""

    def begin(self, pid: int) -> None:
        """The program has started."""

    def end(self, shell_code: int) -> None:
        """The program has ended."""


PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
FROM_TERMINAL = ("SIGQUIT", "SIGBREAK")
"""The terminal sends these to the program too."""
STDERR = 2
EXPORT = wire.ExportOrders()
"""Take the model when the program has come to its end."""


@dataclass(frozen=True)
class Finished:
    """A program that has ended. returncode: -N when signal N ended it."""

    returncode: int
    records: tuple[tuple[int, wire.Record], ...]
    followed: bool
    """The agent was given its orders; else the program ran as written, without flatout."""
    folder: Path | None = None
    """Where this run's files are."""
    ctrl_c: bool = False
    """There was one while it ran."""

    @property
    def torch_versions(self) -> set[str]:
        return {record.version for _, record in self.records if isinstance(record, wire.TorchSeen)}

    @property
    def interrupted(self) -> bool:
        """It ended by Ctrl-C, and not well, whatever its exit code."""
        return self.ctrl_c and self.returncode != 0

    @property
    def shell_code(self) -> int:
        """As a shell shows it: 128 + N when signal N ended the program, INTERRUPTED by Ctrl-C."""
        return _shell_code(self.returncode, self.ctrl_c)


def run(
    command: Command,
    boosts: Sequence[wire.BoostOrder],
    boosts_environment: Mapping[str, str],
    warn: Warn,
    stdout_to_stderr: bool = False,
    profile: wire.ProfileOrders | None = None,
    meanwhile: Meanwhile | None = None,
    live: wire.LiveOrders | None = None,
    watch: ProgramWatch | None = None,
    ranks: OtherRanks | None = None,
    export: wire.ExportOrders | None = None,
) -> Finished:
    """Run the command to its end with `boosts`; an error in flatout costs the boosts, not the run.

    Raises UserError where the command cannot be started, or `ranks` have no folder; what
    `meanwhile` and `ranks` raise, when the program has ended.
    """
    with _ready() as signals:
        orders = _prepare(boosts, (profile, live, export), warn, watch, ranks)
        env = None if orders is None else _environment(orders, boosts, boosts_environment)
        own = env if env is None or ranks is None else ranks.environment(env)
        # All file descriptors stay: `--data <(zcat data.gz)` is one.
        with _streams(ranks, stdout_to_stderr) as streams:
            process = start(command.argv, own, close_fds=False, **streams)
        signals.reach(process, ranks)
        WATCHDOG.watch(process.pid, str(orders or ""), session=False)
        if watch is not None:
            _safely(watch.begin, warn, process.pid)
        try:
            if ranks is not None and env is not None:
                ranks.follow(process, env)
            elif meanwhile is not None and orders is not None:
                meanwhile(orders.parent / "records", process)
        finally:
            returncode = _returncode(process, ranks)
            if watch is not None:
                _safely(watch.end, warn, _shell_code(returncode, signals.ctrl_c))
    records = _collect(orders.parent / "records", warn) if orders is not None else ()
    return Finished(returncode, records, bool(orders), orders and orders.parent, signals.ctrl_c)


@contextmanager
def _streams(ranks: OtherRanks | None, stdout_to_stderr: bool) -> Iterator[dict[str, Any]]:
    """Where the program's streams lead: those of flatout itself, or a log."""
    log = ranks.log() if ranks is not None else None
    if log is None:
        yield {"stdout": STDERR if stdout_to_stderr else None}
        return
    with log.open("wb") as output:
        yield {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}


def _returncode(process: subprocess.Popen[bytes], ranks: OtherRanks | None) -> int:
    own = process.wait()
    WATCHDOG.forget(process.pid)
    return own if ranks is None else ranks.returncode(own)


def _environment(
    orders: Path, boosts: Sequence[wire.BoostOrder], variables: Mapping[str, str]
) -> dict[str, str]:
    env = environment.for_program(orders, variables)
    if any(order.id == "compile" for order in boosts):
        environment.share_compiled(env, folder.ROOT / "cache" / "inductor")
    return env


def _shell_code(returncode: int, ctrl_c: bool) -> int:
    if ctrl_c and returncode:
        return INTERRUPTED
    return returncode if returncode >= 0 else 128 - returncode


def _safely(action: Callable[..., T], warn: Warn, *arguments: Any) -> T | None:
    """An error of the watch costs the watch."""
    try:
        return action(*arguments)
    except Exception as error:
        warn(f"the run is not watched: {type(error).__name__}: {error}")
        return None


def leave(returncode: int) -> int:
    """The exit code to end with; where a signal ended the program, ends flatout by the same."""
    if returncode < 0:
        _die(-returncode)
    # Windows knows codes that do not fit what `sys.exit` takes (0xC000013A after Ctrl-C).
    return returncode - 2**32 if returncode >= 2**31 else returncode


def _die(number: int) -> NoReturn:
    """So that the shell sees what it would have seen without flatout."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # None where the user has closed it
            stream.flush()
    if sys.platform != "win32":
        import resource

        # The program has dumped its core already; one of ours would be of no use.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError, ValueError):  # SIGKILL has no handler to put back
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)  # ignored: process 1 of a container dies of no signal


def _prepare(
    boosts: Sequence[wire.BoostOrder],
    besides: tuple[wire.ProfileOrders | None, wire.LiveOrders | None, wire.ExportOrders | None],
    warn: Warn,
    watch: ProgramWatch | None,
    ranks: OtherRanks | None,
) -> Path | None:
    """Write the orders; None where nothing can be written, and the program runs without us."""
    profile, live, export = besides
    try:
        run_folder = folder.fresh("run" if profile is None else "profile")
        orders = wire.Orders(
            str(run_folder / "records"),
            tuple(boosts),
            profile=profile,
            live=live,
            export=export,
            pulse=(_safely(watch.prepare, warn, run_folder) or "") if watch is not None else "",
        )
        if ranks is not None:
            orders = ranks.prepare(orders, run_folder)
        return write_orders(orders, run_folder)
    except OSError as error:
        if ranks is not None:
            message = f"there is no folder for the files of the ranks ({error})"
            raise UserError(message, "free some space, or set TMPDIR", 1) from error
        warn(f"the program runs as written: flatout found no folder that it can write to ({error})")
        return None


def _collect(records: Path, warn: Warn) -> tuple[tuple[int, wire.Record], ...]:
    tail = Tail(records)
    try:
        entries = tuple(tail.new())
    except OSError as error:
        warn(f"what the agent recorded cannot be read: {error}")
        return ()
    if tail.skipped:
        warn(f"{tail.skipped} damaged lines in {records} were left out")
    return entries


class _Signals:
    """Passes signals on to the program; those that come before it runs wait for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ranks: OtherRanks | None = None
        self._waiting: list[int] = []
        self._witness = Witness()
        self.ctrl_c = False
        """There was one."""

    def pass_on(self, number: int, frame: object) -> None:
        if self._process is None:
            self._waiting.append(number)
            return
        with suppress(OSError):
            self._process.send_signal(number)
        self.wait(number, frame)

    def interrupt(self, number: int, frame: object) -> None:
        """A program that does not run yet cannot have had it."""
        self.ctrl_c = True
        if self._process is not None and self._witness.group_had_it():
            self.wait(number, frame)
        else:
            self.pass_on(number, frame)

    def wait(self, number: int, frame: object) -> None:
        """The program has had it from the terminal and decides what to do; its ranks have not."""
        if self._ranks is not None:
            self._ranks.signal(number)

    def reach(self, process: subprocess.Popen[bytes], ranks: OtherRanks | None) -> None:
        self._witness.start()
        self._process, self._ranks = process, ranks
        for number in self._waiting:
            self.pass_on(number, None)

    def end(self) -> None:
        self._witness.end()


@contextmanager
def _ready() -> Iterator[_Signals]:
    """Take no signal as ours while the program runs, except those that are ignored already.

    Those the program inherits as ignored: nohup, and jobs in the background of a script.
    """
    signals = _Signals()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handled = (
            (PASSED_ON, signals.pass_on),
            (("SIGINT",), signals.interrupt),
            (FROM_TERMINAL, signals.wait),
        )
        for names, handler in handled:
            for number in (getattr(signal, name, None) for name in names):
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, handler)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.end()
