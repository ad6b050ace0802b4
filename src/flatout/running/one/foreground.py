"""The user's program in the foreground, as if flatout were not there, with the agent inside.

The program stays in flatout's own process group and keeps its standard streams, so a terminal
treats both as one job: Ctrl-C and Ctrl-Z reach the program from the terminal itself, and flatout
only waits. A signal sent to flatout alone is passed on. SIGINT may be either; `interrupts` tells
which.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.running.one import environment, folder
from flatout.running.one.command import Command
from flatout.running.one.interrupts import Witness
from flatout.running.one.records import Tail
from flatout.running.one.trial_process import start, write_orders
from flatout.running.one.watchdog import WATCHDOG
from flatout_agent import wire

T = TypeVar("T")
Warn = Callable[[str], None]
Meanwhile = Callable[[Path, subprocess.Popen[bytes]], None]
"""What flatout does while the program runs. Called with the folder of records and the program."""


class OtherRanks(Protocol):
    """The processes that train one job together with the program, which is rank 0."""

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """The orders of rank 0, from those of a program that trains alone."""

    def log(self) -> Path | None:
        """The program's log, in which case it has no input, or None for the terminal."""

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of rank 0, from that of a program that trains alone."""

    def follow(self, process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
        """Start the others and follow all until they have ended, including rank 0."""

    def signal(self, number: int) -> None:
        """Rank 0 has had this signal."""

    def returncode(self, own: int) -> int:
        """The exit code of the run. own: that of rank 0."""


class ProgramWatch(Protocol):
    """Watches the program while it runs. Nothing that it raises reaches the program."""

    def prepare(self, run_folder: Path) -> str:
        """Called before the program starts; returns the folder for rings, or "" for none."""

    def begin(self, pid: int) -> None:
        """The program has started."""

    def end(self, shell_code: int) -> None:
        """The program has ended."""


PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
FROM_TERMINAL = ("SIGQUIT", "SIGBREAK")
"""Signals that the terminal sends to the program too."""
STDERR = 2
WAIT_S = 1.0


@dataclass(frozen=True)
class Finished:
    """A program that has ended. returncode: -N when signal N ended it."""

    returncode: int
    records: tuple[tuple[int, wire.Record], ...]
    followed: bool
    """Whether the agent was given orders; otherwise the program ran as written."""
    folder: Path | None = None
    """Where the files of this run are."""
    ctrl_c: bool = False
    """Whether there was one while it ran."""

    @property
    def torch_versions(self) -> set[str]:
        return {record.version for _, record in self.records if isinstance(record, wire.TorchSeen)}

    @property
    def interrupted(self) -> bool:
        """Whether it was ended by Ctrl-C and has failed, whatever its exit code."""
        return self.ctrl_c and self.returncode != 0

    @property
    def shell_code(self) -> int:
        """The exit code in a shell: 128 + N if signal N ended it, INTERRUPTED after Ctrl-C."""
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

    Raises UserError if the command cannot be started or `ranks` have no folder. Also raises what
    `meanwhile` and `ranks` raise, after the program has ended.
    """
    with _ready() as signals:
        orders = _prepare(boosts, (profile, live, export), warn, watch, ranks)
        env = None if orders is None else _environment(orders, boosts, boosts_environment)
        own = env if env is None or ranks is None else _of_rank(env, ranks)
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
            returncode = _end_of(process)
            WATCHDOG.forget(process.pid)
            if ranks is not None:
                returncode = ranks.returncode(returncode)
            if watch is not None:
                _safely(watch.end, warn, _shell_code(returncode, signals.ctrl_c))
    records = _collect(orders.parent / "records", warn) if orders is not None else ()
    return Finished(returncode, records, bool(orders), orders and orders.parent, signals.ctrl_c)


@contextmanager
def _streams(ranks: OtherRanks | None, stdout_to_stderr: bool) -> Iterator[dict[str, Any]]:
    """The program's streams: those of flatout itself, or a log."""
    log = ranks.log() if ranks is not None else None
    if log is None:
        yield {"stdout": STDERR if stdout_to_stderr else None}
        return
    with log.open("wb") as output:
        yield {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}


def _environment(
    orders: Path, boosts: Sequence[wire.BoostOrder], variables: Mapping[str, str]
) -> dict[str, str]:
    env = environment.for_program(orders, variables)
    if any(order.id == "compile" for order in boosts):
        environment.share_compiled(env, folder.ROOT / "cache" / "inductor")
    return env


def _of_rank(env: Mapping[str, str], ranks: OtherRanks) -> dict[str, str]:
    own = ranks.environment(env)
    return own if ranks.log() is None else environment.for_log(own)


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the program's end; returns its exit code, -N if signal N ended it.

    A signal that comes just before `wait` blocks is handled only when that returns: the program
    would not get it. So this waits for signals too, and where it cannot, not for long at a time.
    """
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        with suppress(OSError), ExitStack() as stack:  # an old kernel, a sandbox
            ended = os.pidfd_open(process.pid)
            stack.callback(os.close, ended)
            told, tells = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, told)
            stack.callback(os.close, tells)
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(tells))
            while process.poll() is None:
                readable, _, _ = select.select([ended, told], [], [])
                if told in readable:
                    os.read(told, 4096)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(WAIT_S)


def _shell_code(returncode: int, ctrl_c: bool) -> int:
    if ctrl_c and returncode:
        return INTERRUPTED
    return returncode if returncode >= 0 else 128 - returncode


def _safely(action: Callable[..., T], warn: Warn, *arguments: Any) -> T | None:
    """An error of the watch costs only the watch."""
    try:
        return action(*arguments)
    except Exception as error:
        warn(f"the run is not watched: {type(error).__name__}: {error}")
        return None


def leave(returncode: int) -> int:
    """The exit code to end with. If a signal ended the program, it ends flatout too."""
    if returncode < 0:
        # End by this signal, so that the shell sees what it would have seen without flatout.
        number = -returncode
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, AttributeError):  # None where the user has closed it
                stream.flush()
        if sys.platform != "win32":
            import resource

            # The program has already dumped its core; ours would be useless.
            resource.setrlimit(
                resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
            )
            with suppress(OSError, ValueError):  # SIGKILL has no handler to restore
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(128 + number)  # still here: process 1 of a container ignores signals
    # Windows has codes that are too large for `sys.exit` (0xC000013A after Ctrl-C).
    return returncode - 2**32 if returncode >= 2**31 else returncode


def _prepare(
    boosts: Sequence[wire.BoostOrder],
    besides: tuple[wire.ProfileOrders | None, wire.LiveOrders | None, wire.ExportOrders | None],
    warn: Warn,
    watch: ProgramWatch | None,
    ranks: OtherRanks | None,
) -> Path | None:
    """Write the orders; None if nothing can be written and the program runs without us."""
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
    """Passes signals on to the program; those that come before it starts wait for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ranks: OtherRanks | None = None
        self._waiting: list[int] = []
        self._witness = Witness()
        self.ctrl_c = False
        """Whether there was one."""

    def pass_on(self, number: int, frame: object) -> None:
        if self._process is None:
            self._waiting.append(number)
            return
        with suppress(OSError):
            try:
                self._process.send_signal(number)
            except ValueError:  # Windows sends none but SIGTERM to one process
                self._process.terminate()
        self.wait(number, frame)

    def interrupt(self, number: int, frame: object) -> None:
        """A program that has not started cannot have had it."""
        self.ctrl_c = True
        if self._process is not None and self._witness.group_had_it():
            self.wait(number, frame)
        else:
            self.pass_on(number, frame)

    def wait(self, number: int, frame: object) -> None:
        """The program has had it from the terminal and decides what to do; other ranks have not."""
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
    """While the program runs, handle all signals except those that are already ignored.

    The program inherits those as ignored: under nohup and in the background of a script.
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
