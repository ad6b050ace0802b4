"""Keep the agent's frames out of the tracebacks that the user's program prints when it dies."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

LAST_LETTERS = 32_000
"""What is kept of a traceback's end."""
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120


def install() -> None:
    """Clean exceptions before whatever hook the program uses prints them."""
    sys.excepthook = _cleaning(sys.excepthook)
    shown = threading.excepthook

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            clean(arguments.exc_value)
        shown(arguments)

    threading.excepthook = thread_hook


def of_crash() -> str | None:
    """The traceback of the exception that is ending this process; None: it ends in order.

    Python itself keeps it when it prints it. Asked while the process ends, so nothing of the
    program was hooked for it.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or isinstance(error, KeyboardInterrupt):
        return None
    clean(error)
    return "".join(traceback.format_exception(error))[-LAST_LETTERS:]


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _cleaning(hook: Hook) -> Hook:
    def clean_first(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> object:
        clean(error)
        return hook(kind, error, error.__traceback__)

    return clean_first


def clean(error: BaseException) -> None:
    """Take our frames out of the traceback of `error` and of those that led to it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        item.__traceback__ = _without_ours(item.__traceback__)
        waiting += [item.__cause__, item.__context__]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same chain of frames without those of this package."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for item in reversed(kept):
        item.tb_next = following
        following = item
    return following


def first_line(error: BaseException) -> str:
    """What an error says first; its class where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # "backend='inductor' raised:" says nothing yet.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
