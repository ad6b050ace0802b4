"""MovingLine: the current activity, on stderr; on a terminal as one moving line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from flatout.reporting import plain
from flatout.reporting.paragraphs import Line, animated, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


EVERY_S = 60.0
"""Where nothing moves, long work says a line so often."""


class MovingLine:
    """A context manager, so that the terminal is always restored."""

    first = ""
    """What it says at the start."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.animated = animated(self.console)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self.animated:
            self._status = self.console.status(self.first)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self.console.show_cursor(True)

    def _move(self, text: str) -> None:
        """Show this in the moving line, if there is one."""
        if self._status is None:
            return
        from rich.text import Text

        line = plain.cut(plain.one_line(text), max(self.console.width - 4, 20))
        self._status.update(Text(plain.encodable(line, self.console.encoding)))

    def _print(self, text: str) -> None:
        """Print this on its own line."""
        show(self.console, Line(plain.one_line(text)))


class SelfTestView(MovingLine):
    """Shows which self-test runs; where nothing moves, one line at the begin and one a minute."""

    first = "looking at the machine and trying its devices: about a minute"

    def __enter__(self) -> Self:
        super().__enter__()
        self._told = time.monotonic()
        if self._status is None:
            self._print(self.first)
        return self

    def step(self, text: str) -> None:
        """A test begins."""
        if self._status is not None:
            self._move(f"trying: {text}")
        elif time.monotonic() - self._told >= EVERY_S:
            self._told = time.monotonic()
            self._print(f"trying: {text}")
