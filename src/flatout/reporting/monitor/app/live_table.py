"""A table that is updated from frame to frame; the cursor stays on its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rich.text import Text
from textual.widgets import DataTable

from flatout.reporting.monitor.columns import TableColumn
from flatout.reporting.monitor.fitting import GAP, FittedColumn, fit

T = TypeVar("T")
BARS = 2
"""Cells for the scroll bars of the table and its container."""
Cell = tuple[str, str]
"""Text and style."""


class LiveTable(DataTable[Text]):
    """Shows one frame after another; updates only the cells that have changed."""

    def __init__(self, **more: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=GAP // 2, **more)
        self._shape: list[tuple[str, int]] = []
        self._rows: dict[str, list[Cell]] = {}
        self._floors: dict[str, int] = {}
        self._width = 0

    def show(
        self,
        columns: Sequence[TableColumn[T]],
        items: Sequence[T],
        keys: Sequence[str],
        styles: Sequence[str] = (),
    ) -> None:
        """Show these items, one a row. keys: names that identify items from frame to frame."""
        if self.app.size.width != self._width:
            self._width, self._floors = self.app.size.width, {}
        fitted = fit(columns, items, self._width - GAP - BARS, self._floors)
        self._floors |= {each.heading: each.width for each in fitted if not each.left}
        rows = {
            key: [(each.cells[row], styles[row] if row < len(styles) else "") for each in fitted]
            for row, key in enumerate(keys)
        }
        shape = [(each.heading, each.width) for each in fitted]
        if shape != self._shape or list(rows) != list(self._rows):
            self._rebuild(fitted, shape, rows)
        else:
            self._change(fitted, rows)
        self._shape, self._rows = shape, rows

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor, or None if there is no row."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def _rebuild(
        self,
        fitted: Sequence[FittedColumn],
        shape: list[tuple[str, int]],
        rows: dict[str, list[Cell]],
    ) -> None:
        chosen, offset = self.chosen, self.scroll_offset
        if shape != self._shape:
            self.clear(columns=True)
            for each in fitted:
                heading = _text(each.heading, "", each.left)
                self.add_column(heading, key=each.heading, width=each.width)
        else:
            self.clear()
        for key, cells in rows.items():
            texts = (_text(*cell, each.left) for cell, each in zip(cells, fitted, strict=True))
            self.add_row(*texts, key=key)
        if chosen in rows:
            self.move_cursor(row=list(rows).index(chosen), animate=False, scroll=False)
        self.scroll_to(offset.x, offset.y, animate=False)

    def _change(self, fitted: Sequence[FittedColumn], rows: dict[str, list[Cell]]) -> None:
        for key, cells in rows.items():
            for cell, before, each in zip(cells, self._rows[key], fitted, strict=True):
                if cell != before:
                    self.update_cell(key, each.heading, _text(*cell, each.left))


def _text(text: str, style: str, left: bool) -> Text:
    """Unchanged: program names are not markup."""
    return Text(text, style=style, justify="left" if left else "right", no_wrap=True)
