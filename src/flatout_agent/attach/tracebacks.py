"""Keep the agent's frames out of the tracebacks that the user's program prints when it dies."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from flatout_agent.attach.replacing import Undo, in_reverse, replaced

LAST_LETTERS = 32_000
"""The number of characters kept of a traceback's end."""
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120


def install() -> Undo:
    """Clean exceptions before the program's hook prints them; returns the undo function."""
    thread_excepthook = threading.excepthook

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            clean(arguments.exc_value)
        thread_excepthook(arguments)

    undos = [
        replaced(sys, "excepthook", _cleaning(sys.excepthook)),
        replaced(threading, "excepthook", thread_hook),
    ]
    shell = _shell()
    if shell is not None:  # it prints the errors of cells by itself
        undos.append(replaced(shell, "showtraceback", _showing(shell.showtraceback)))
    return in_reverse(undos)


def ending() -> BaseException | None:
    """The exception that is ending this process, without our frames, or None if it ends normally.

    Python itself keeps it when printing it. This is called while the process ends, so nothing in
    the program is hooked for it. A notebook's errors end a cell, not the process.
    """
    if _shell() is not None:
        return None
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or isinstance(error, KeyboardInterrupt):
        return None
    clean(error)
    return error if isinstance(error, BaseException) else None


def _shell() -> Any:
    """The interactive shell that runs a notebook's cells, or None outside a notebook."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def text(error: BaseException) -> str:
    """The end of its traceback as Python prints it."""
    return "".join(traceback.format_exception(error))[-LAST_LETTERS:]


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _cleaning(hook: Hook) -> Hook:
    def clean_first(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> object:
        clean(error)
        return hook(kind, error, error.__traceback__)

    return clean_first


def _showing(show: Callable[..., None]) -> Callable[..., None]:
    def clean_first(exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        kind, error, trace = exc_tuple or sys.exc_info()
        if isinstance(error, BaseException):
            clean(error)
            trace = error.__traceback__
        show((kind, error, trace) if exc_tuple else None, *arguments, **options)

    return clean_first


def clean(error: BaseException) -> None:
    """Remove our frames from the traceback of `error` and of the errors that led to it."""
    cleaned: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in cleaned:
            continue
        cleaned.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        pending += [current.__cause__, current.__context__]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same chain of frames without those of this package."""
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            entries.append(trace)
        trace = trace.tb_next
    following = None
    for entry in reversed(entries):
        entry.tb_next = following
        following = entry
    return following


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if there is none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # "backend='inductor' raised:" says nothing yet.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
