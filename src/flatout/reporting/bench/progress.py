"""BenchView: the progress of the measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout.reporting.bench.screen import figure
from flatout.reporting.moving_line import MovingLine

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.nouns.ceiling import Ceiling


class BenchView(MovingLine):
    """Shows each ceiling as it is measured."""

    first = "looking at the machine"

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._count = self._done = 0

    def planned(self, count: int) -> None:
        """`count` ceilings will be measured."""
        self._count = count

    def begun(self, ceiling: Ceiling) -> None:
        """A ceiling is being measured."""
        self._show(ceiling)

    def point(self, ceiling: Ceiling) -> None:
        """One of the ceiling's sizes has been measured."""
        self._show(ceiling)

    def ended(self, ceiling: Ceiling) -> None:
        """The ceiling has its value, or will have none."""
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
        self._move(text)
