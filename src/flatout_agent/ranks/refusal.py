"""The end of a rank that cannot go on correctly with the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from flatout_agent import wire
from flatout_agent.tell.recorder import Recorder

LOST_WORDS = ("Connection", "connection", "Timed out", "timed out", "timeout", "closed by peer")
"""Words in the errors of gloo and NCCL if another rank is gone or does not answer."""


WORKER_WORDS = "DataLoader worker (pid"
"""The beginning of torch's error if a loader's worker is gone."""
SPARSE = "its model has sparse gradients (an embedding with sparse=True)"


class Refused(Exception):  # noqa: N818 - a decision with its reason, not an error
    """These ranks cannot train this job together correctly."""

    def __init__(self, reason: str, next_step: str = "") -> None:
        super().__init__(reason)
        self.reason, self.next_step = reason, next_step


def losing(recorder: Recorder) -> Callable[[Exception], None]:
    """Handle an error of an exchange: if another rank is gone, this one ends too.

    Some exchanges are made inside the program's own code, which must not see them fail.
    """

    def lost(error: Exception) -> None:
        if isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_WORDS):
            recorder.fault("ranks", error)
            _leave(wire.LOST_EXIT)

    return lost


def guarding(recorder: Recorder) -> Callable[..., Any]:
    """A call of ours within the program: an error in it is reported and ends the rank.

    Otherwise the program would go on with wrong gradients.
    """

    def guarded(action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
        except Refused as refused:
            refuse(recorder, refused.reason, refused.next_step)
        except Exception as error:
            if isinstance(error, RuntimeError) and str(error).startswith(WORKER_WORDS):
                raise  # raised by a signal anywhere in the program, so it is the program's own
            losing(recorder)(error)
            recorder.fault("ranks", error)
            refuse(recorder, f"an error of flatout's: {type(error).__name__}: {error}")

    return guarded


def refuse(recorder: Recorder, reason: str, next_step: str = "") -> NoReturn:
    """Record the reason and end this process at once."""
    recorder.write(wire.RanksRefused(reason, next_step))
    _leave(wire.REFUSED_EXIT)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or the program's own
            stream.flush()
    os._exit(code)
