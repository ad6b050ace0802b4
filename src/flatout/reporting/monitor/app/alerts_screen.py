"""The alerts: below the tables as far as there is room, and all of them on their own screen."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from flatout.nouns.frame import Frame
from flatout.reporting import plain
from flatout.reporting.monitor import alert_lines

NONE = "No alerts."


class AlertsPart(Static):
    """As many of the alerts as there is room for."""

    _frame: Frame | None = None

    def show(self, frame: Frame) -> None:
        """The alerts of this frame."""
        self._frame = frame
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._frame is not None:
            lines = alert_lines.lines(self._frame, self.size.width, self.size.height)
            self.update(Text("\n").join(lines))


class AlertsScreen(Screen[None]):
    """Scrolls; Escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,a", "app.pop_screen", "Back")]

    def __init__(self) -> None:
        super().__init__()
        self._frame: Frame | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static(id="details", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def show(self, frame: Frame) -> None:
        """The alerts of this frame."""
        self._frame = frame
        self._draw()

    def _draw(self) -> None:
        if self._frame is None or not self.is_mounted:
            return
        frame = self._frame
        lines = [
            *(Text(plain.one_line(note), style="yellow") for note in frame.notes),
            *alert_lines.whole(frame.alerts, frame, self.app.size.width - 2),
        ]
        self.query_one("#details", Static).update(Text("\n").join(lines or [Text(NONE)]))
