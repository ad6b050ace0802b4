"""SIGTERM becomes: finish the step, save, then end as SIGTERM would have ended the process.

Schedulers send SIGTERM and, after a grace time, SIGKILL: Slurm at the time limit and on
preemption, Kubernetes when a pod is evicted, clouds when a spot instance is taken back. The handler
only notes the signal, since a state in the middle of a step is none to go on from. `Checkpoint`
asks after each step, saves, and calls `done`: that calls the handler that was there before, or
raises `SystemExit(143)` where there was none. Ctrl-C is left alone.

- Another SIGTERM does what it did before. Within `REPEAT_S` it counts as the same one: under
  Slurm a rank gets one from Slurm and one that `torchrun` passes on.
- Where the step takes longer than the grace time, or no further step comes, the signal does what
  it did before: a program must not be deaf to it. A save that has begun is never cut short.
- Under Slurm (`--signal=USR1@120`) SIGUSR1 saves and the training goes on, where the program has
  no handler of its own for it: Slurm's SIGTERM comes later. On Windows, SIGBREAK is like SIGTERM.
- Processes that this one forks (loader workers) have the handlers of before.
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

SAVE, END = 1, 2
"""What a signal asks for: a checkpoint; a checkpoint, and then the end."""

REPEAT_S = 3.0
_STUCK_S = 2.0
"""So long after the grace time the main thread may take to see the signal."""


class Watch:
    """Whether a signal asks one Checkpoint to save; signals are watched until `close`.

    `grace`: seconds from the signal to the next step's end after which it is not waited for.
    Made in the main thread: elsewhere Python lets no one watch signals, and a warning says so.
    """

    def __init__(self, grace: float) -> None:
        self.asked = 0
        """0, SAVE or END."""
        self.saving = False
        self.grace = grace
        _signals.add(self)

    def ask(self) -> None:
        """Another rank was asked to end: so is this process."""
        _signals.ask(signal.SIGTERM)

    def done(self) -> None:
        """What was asked for is safe. Ends the process once all Checkpoints say so."""
        ending, self.asked, self.saving = self.asked == END, 0, False
        if ending:
            _signals.end_if_all_saved()

    def close(self) -> None:
        """Watch no longer; with the last one closed, the handlers of before are put back."""
        self.asked = 0
        _signals.remove(self)


class _Signals:
    """The handlers of this process, shared by all watches."""

    def __init__(self) -> None:
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._before: dict[int, Any] = {}
        """Signal -> the handler that was there before."""
        self._signal = 0
        """The signal that asked for the end; 0: none has."""
        self._since = 0.0
        self._overdue = False

    def add(self, watch: Watch) -> None:
        if threading.current_thread() is not threading.main_thread():
            message = "SIGTERM will not save: this Checkpoint was not made in the main thread"
            warnings.warn(message, stacklevel=4)
            return
        self._watches.add(watch)
        for number in _numbers():
            handler = signal.getsignal(number)
            if handler != self._handle and handler not in (signal.SIG_IGN, None):
                self._before[number] = handler
                signal.signal(number, self._handle)

    def remove(self, watch: Watch) -> None:
        self._watches.discard(watch)
        if not self._watches and threading.current_thread() is threading.main_thread():
            self._put_back()
            self._signal, self._overdue = 0, False

    def ask(self, number: int) -> None:
        self._signal, self._since = self._signal or number, time.monotonic()
        for watch in self._watches:
            watch.asked = END

    def end_if_all_saved(self) -> None:
        if any(watch.asked == END for watch in self._watches):
            return
        before = self._before.get(self._signal, signal.SIG_DFL)
        if callable(before):
            before(self._signal, None)
        elif threading.current_thread() is threading.main_thread():
            number = self._signal
            self._put_back()
            raise SystemExit(128 + number)
        else:  # an exit ends the main thread only from within
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
        elif number == getattr(signal, "SIGUSR1", None):
            for watch in self._watches:
                watch.asked = watch.asked or SAVE
        elif self._overdue or (self._signal and time.monotonic() - self._since > REPEAT_S):
            self._as_before(number, frame)
        elif not self._signal:
            self.ask(number)
            # No threading.Thread: this may have interrupted one being started, with its lock held.
            _thread.start_new_thread(self._wait, (max(each.grace for each in self._watches),))

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _wait(self, grace: float) -> None:
        """In a thread: pass the signal on where no step has ended within the grace time."""
        time.sleep(grace)
        if not self._waiting():
            return
        self._overdue = True
        os.kill(os.getpid(), self._signal)
        if not callable(self._before.get(self._signal)):
            time.sleep(_STUCK_S)  # the main thread is in a call that sees no signals
            if self._waiting():
                os._exit(128 + self._signal)

    def _waiting(self) -> bool:
        watches = list(self._watches)
        return any(each.asked == END for each in watches) and not any(
            each.saving for each in watches
        )

    def _put_back(self) -> None:
        for number, handler in list(self._before.items()):
            if signal.getsignal(number) == self._handle:  # else another one was put on top
                signal.signal(number, handler)
                del self._before[number]


def _numbers() -> list[int]:
    names = ["SIGTERM", "SIGBREAK"]
    if "SLURM_JOB_ID" in os.environ and _is_default("SIGUSR1"):
        names.append("SIGUSR1")
    return [int(getattr(signal, name)) for name in names if hasattr(signal, name)]


def _is_default(name: str) -> bool:
    number = getattr(signal, name, None)
    return number is not None and signal.getsignal(number) == signal.SIG_DFL


_signals = _Signals()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_signals.forget)
