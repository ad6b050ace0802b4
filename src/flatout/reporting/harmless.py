"""An error in flatout itself costs only what it concerns, not the program. Light to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress


def warn(line: str) -> None:
    """Print one line on stderr, if there is one."""
    from flatout.reporting import terminal

    with suppress(OSError, AttributeError):  # a closed stderr is no reason to stop
        terminal.warn(line)


@contextmanager
def harmless(consequence: str) -> Iterator[None]:
    """Keep an error in flatout itself away from the user's program; warn of its consequence."""
    try:
        yield
    except Exception as error:
        warn(f"{consequence}: {type(error).__name__}: {error}")
