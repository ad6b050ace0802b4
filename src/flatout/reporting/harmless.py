"""Errors of flatout's own cost what they concern, never the user's program. Light to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress


def warn(line: str) -> None:
    """One line on stderr, where there is one."""
    from flatout.reporting import terminal

    with suppress(OSError, AttributeError):  # stderr may be closed: no reason to stop
        terminal.warn(line)


@contextmanager
def harmless(consequence: str) -> Iterator[None]:
    """An error of flatout's own never affects the user's program."""
    try:
        yield
    except Exception as error:
        warn(f"{consequence}: {type(error).__name__}: {error}")
