"""SIGTERM becomes: finish the step, save, then end as SIGTERM would have ended the process.

Schedulers send SIGTERM and, after a grace period, SIGKILL: Slurm at the time limit and on
preemption, Kubernetes when a pod is evicted, clouds when a spot instance is reclaimed. The handler
only notes the signal, since training cannot resume from the middle of a step. `Checkpoint` checks
after each step, saves, and calls `done`: that calls the previous handler, or raises
`SystemExit(143)` where there was none. Ctrl-C is left alone.

- Another SIGTERM goes to the previous handler. Within `REPEAT_S` it counts as the same one: under
  Slurm a rank gets one from Slurm and one that `torchrun` forwards.
- Where the step takes longer than the grace period, or no further step ends, the signal goes to the
  previous handler: a program must not ignore it. A save that has begun is never interrupted.
- Under Slurm (`--signal=USR1@120`) SIGUSR1 saves and training continues, where the program has
  no handler of its own for it: Slurm's SIGTERM comes later. On Windows, SIGBREAK is like SIGTERM.
- Under `flatout run --nodes`, whoever started the nodes warns by the signal in FLATOUT_WARNING: it
  saves and ends the process with exit code 75, by which the job is queued again. Where no further
  step ends, nothing is forced: the program may be about to end.
- Processes that this one forks (loader workers) have the previous handlers.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from types import FrameType
from typing import Any

from flatout_agent import wire

SAVE, END, LEAVE = 1, 2, 3
"""What a signal requests: a checkpoint; a checkpoint, and then the end of the process; the same
after a warning, to be started again.
"""

REPEAT_S = 3.0
"""Seconds within which another signal counts as the same one."""
_STUCK_S = 2.0
"""Seconds after the grace period that the main thread may take to handle the signal."""


class Watch:
    """Whether a signal requests one Checkpoint to save; signals are watched until `close`.

    `grace`: most seconds to wait for the end of the current step after the signal. Create it in the
    main thread: elsewhere Python allows no signal handlers, and a warning says so.
    """

    def __init__(self, grace: float) -> None:
        self.request = 0
        """0, SAVE, END or LEAVE."""
        self.saving = False
        self.grace = grace
        _signals.add(self)

    def ask(self, request: int) -> None:
        """Request the end of this process, since another rank was requested to end."""
        _signals.ask(_warning() or signal.SIGTERM if request == LEAVE else signal.SIGTERM)

    def done(self) -> None:
        """Note that the requested checkpoint is safe; ends the process once all Checkpoints are."""
        ending, self.request, self.saving = self.request >= END, 0, False
        if ending:
            _signals.end_if_all_saved()

    def close(self) -> None:
        """Stop watching; when the last watch is closed, the previous handlers are restored."""
        self.request = 0
        _signals.remove(self)


class _Signals:
    """The handlers of this process, shared by all watches."""

    def __init__(self) -> None:
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._before: dict[int, Any] = {}
        """Signal -> its previous handler."""
        self._signal = 0
        """The signal that requested the end, or 0."""
        self._since = 0.0
        self._overdue = False

    def add(self, watch: Watch) -> None:
        if threading.current_thread() is not threading.main_thread():
            message = (
                "SIGTERM will not save: this Checkpoint was not created in the main thread. "
                "Create it there"
            )
            warnings.warn(message, stacklevel=4)
            return
        self._watches.add(watch)
        for number in _numbers():
            handler = signal.getsignal(number)
            ignored = (None,) if number == _warning() else (signal.SIG_IGN, None)
            if handler != self._handle and handler not in ignored:
                self._before[number] = handler
                signal.signal(number, self._handle)

    def remove(self, watch: Watch) -> None:
        self._watches.discard(watch)
        if not self._watches and threading.current_thread() is threading.main_thread():
            self._put_back()
            self._signal, self._overdue = 0, False

    def ask(self, number: int) -> None:
        if not self._signal or self._signal == _warning():
            self._signal, self._since = number, time.monotonic()
        for watch in self._watches:
            watch.request = LEAVE if self._signal == _warning() else END

    def end_if_all_saved(self) -> None:
        if any(watch.request >= END for watch in self._watches):
            return
        before = self._before.get(self._signal, signal.SIG_DFL)
        if self._signal == _warning():
            self._put_back()
            if threading.current_thread() is not threading.main_thread():
                os._exit(wire.SAVED_EXIT)
            raise SystemExit(wire.SAVED_EXIT)
        if callable(before):
            before(self._signal, None)
        elif threading.current_thread() is threading.main_thread():
            number = self._signal
            self._put_back()
            raise SystemExit(128 + number)
        else:  # SystemExit ends the process only from the main thread
            self._overdue = True
            os.kill(os.getpid(), self._signal)
            time.sleep(_STUCK_S)
            os._exit(128 + self._signal)

    def forget(self) -> None:
        """In a forked child: the watches are the parent's."""
        self._watches.clear()
        self._put_back()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._watches:
            self._as_before(number, frame)
        elif number == _warning():
            if not self._signal:
                self.ask(number)
        elif number == getattr(signal, "SIGUSR1", None):
            for watch in self._watches:
                watch.request = watch.request or SAVE
        elif self._overdue or (self._ending and time.monotonic() - self._since > REPEAT_S):
            self._as_before(number, frame)
        elif not self._ending:
            self.ask(number)
            # Not threading.Thread: this may have interrupted the start of one, with its lock held.
            _thread.start_new_thread(self._wait, (max(watch.grace for watch in self._watches),))

    @property
    def _ending(self) -> bool:
        """Whether the end was requested, not only a warning given."""
        return self._signal not in (0, _warning())

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _wait(self, grace: float) -> None:
        """In a thread: forward the signal where no step has ended within the grace period."""
        time.sleep(grace)
        if not self._waiting():
            return
        self._overdue = True
        os.kill(os.getpid(), self._signal)
        if not callable(self._before.get(self._signal)):
            time.sleep(_STUCK_S)  # the main thread may be in a call that blocks signal handling
            if self._waiting():
                os._exit(128 + self._signal)

    def _waiting(self) -> bool:
        watches = list(self._watches)
        return any(watch.request >= END for watch in watches) and not any(
            watch.saving for watch in watches
        )

    def _put_back(self) -> None:
        for number, handler in list(self._before.items()):
            if signal.getsignal(number) == self._handle:  # else a newer handler was installed
                signal.signal(number, handler)
                del self._before[number]


def _numbers() -> list[int]:
    names = ["SIGTERM", "SIGBREAK"]
    if "SLURM_JOB_ID" in os.environ and _is_default("SIGUSR1"):
        names.append("SIGUSR1")
    numbers = [int(getattr(signal, name)) for name in names if hasattr(signal, name)]
    return [*dict.fromkeys([*numbers, *([_warning()] if _warning() else [])])]


def _warning() -> int:
    """The signal with which a cluster warns of the end, or 0 if there is none or the program
    handles it.
    """
    number = getattr(signal, os.environ.get(wire.WARNING_ENV) or "-", None)
    if number is None:
        return 0
    handler = signal.getsignal(number)
    ours = handler in (signal.SIG_DFL, signal.SIG_IGN) or handler == _signals._handle
    return int(number) if ours else 0


def _is_default(name: str) -> bool:
    number = getattr(signal, name, None)
    return number is not None and signal.getsignal(number) == signal.SIG_DFL


_signals = _Signals()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_signals.forget)
