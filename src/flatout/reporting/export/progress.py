"""ExportView: the progress of the export."""

from __future__ import annotations

from flatout.reporting.moving_line import MovingLine


class ExportView(MovingLine):
    """Shows each step of an export."""

    first = "looking at the capture"

    def step(self, text: str) -> None:
        """What is being done now."""
        if self._status is None:
            self._print(text)
        else:
            self._move(text)
