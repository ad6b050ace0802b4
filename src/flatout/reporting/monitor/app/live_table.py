"""A table whose rows go on from frame to frame: the cursor stays where its row goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rich.text import Text
from textual.widgets import DataTable

from flatout.reporting.monitor.columns import TableColumn

T = TypeVar("T")


class LiveTable(DataTable[Text]):
    """Shows one frame after the other; changes only the cells that have changed."""

    def __init__(self, **more: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, **more)
        self._headings: list[str] = []
        self._cells: dict[str, list[tuple[str, str]]] = {}

    def show(
        self,
        columns: Sequence[TableColumn[T]],
        items: Sequence[T],
        keys: Sequence[str],
        styles: Sequence[str] = (),
    ) -> None:
        """These items, one a row. keys: what names each of them from frame to frame."""
        texts = [[column.text(item) for item in items] for column in columns]
        shown = [
            (column, cells)
            for column, cells in zip(columns, texts, strict=True)
            if any(cell.strip(" -") for cell in cells)
        ]
        headings = [column.heading for column, _ in shown]
        rows = {
            key: [
                (cells[number], styles[number] if number < len(styles) else "")
                for _, cells in shown
            ]
            for number, key in enumerate(keys)
        }
        rights = [not column.left for column, _ in shown]
        if headings != self._headings or list(rows) != list(self._cells):
            self._rebuild(headings, rows, rights)
        else:
            self._change(rows, rights)
        self._headings, self._cells = headings, rows

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor; None: there is no row."""
        keys = list(self._cells)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def _rebuild(
        self, headings: list[str], rows: dict[str, list[tuple[str, str]]], rights: list[bool]
    ) -> None:
        chosen, offset = self.chosen, self.scroll_offset
        if headings != self._headings:
            self.clear(columns=True)
            for heading, right in zip(headings, rights, strict=True):
                self.add_column(_text(heading, "", right), key=heading)
        else:
            self.clear()
        for key, cells in rows.items():
            texts = (_text(*cell, right) for cell, right in zip(cells, rights, strict=True))
            self.add_row(*texts, key=key)
        if chosen in rows:
            self.move_cursor(row=list(rows).index(chosen), animate=False, scroll=False)
        self.scroll_to(offset.x, offset.y, animate=False)

    def _change(self, rows: dict[str, list[tuple[str, str]]], rights: list[bool]) -> None:
        for key, cells in rows.items():
            for number, cell in enumerate(cells):
                if cell != self._cells[key][number]:
                    text = _text(*cell, rights[number])
                    self.update_cell(key, self._headings[number], text, update_width=True)


def _text(text: str, style: str, right: bool) -> Text:
    """As it is: what programs are called is no markup."""
    return Text(text, style=style, justify="right" if right else "left", no_wrap=True)
