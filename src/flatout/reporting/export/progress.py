"""ExportView: the export while it goes on, on stderr; on a terminal one line that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout.reporting import plain
from flatout.reporting.paragraphs import Line, animated, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class ExportView:
    """Shows the progress; a context manager, so that the terminal is always given back."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self._status: Status | None = None

    def __enter__(self) -> ExportView:
        if animated(self.console):
            self._status = self.console.status("looking at the capture")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self.console.show_cursor(True)

    def step(self, text: str) -> None:
        """What is being done now."""
        line = plain.one_line(text)
        if self._status is None:
            show(self.console, Line(line))
            return
        from rich.text import Text

        cut = plain.cut(line, max(self.console.width - 4, 20))
        self._status.update(Text(plain.encodable(cut, self.console.encoding)))
