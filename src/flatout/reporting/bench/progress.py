"""BenchView: the measuring while it goes on, on stderr; on a terminal one line that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout.nouns.ceiling import Ceiling
from flatout.reporting import plain
from flatout.reporting.bench.screen import figure
from flatout.reporting.paragraphs import Line, animated, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class BenchView:
    """Shows the progress; a context manager, so that the terminal is always given back."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.animated = animated(self.console)
        self._status: Status | None = None
        self._count = self._done = 0

    def __enter__(self) -> BenchView:
        if self.animated:
            self._status = self.console.status("looking at the machine")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self.console.show_cursor(True)

    def planned(self, count: int) -> None:
        """So many ceilings will be measured."""
        self._count = count

    def begun(self, ceiling: Ceiling) -> None:
        """One is being measured."""
        self._show(ceiling)

    def point(self, ceiling: Ceiling) -> None:
        """One of its sizes is known."""
        self._show(ceiling)

    def ended(self, ceiling: Ceiling) -> None:
        """It has its value, or will have none."""
        self._done += 1
        if self._status is None:
            value, unit = figure(ceiling)
            outcome = f"{value} {unit}" if ceiling.value is not None else ceiling.note
            self._print(
                f"[{self._done}/{self._count}] {ceiling.device}, {ceiling.title}: {outcome}"
            )

    def _show(self, ceiling: Ceiling) -> None:
        if self._status is None:
            return
        value, unit = figure(ceiling)
        value_text = f": {value} {unit}" if ceiling.value is not None else ""
        text = f"{self._done + 1} of {self._count}  {ceiling.device}, {ceiling.title}{value_text}"
        from rich.text import Text

        line = plain.cut(plain.one_line(text), max(self.console.width - 4, 20))
        self._status.update(Text(plain.encodable(line, self.console.encoding)))

    def _print(self, line: str) -> None:
        show(self.console, Line(plain.one_line(line)))
