"""Tables fitted to a width: the least important columns are dropped, long texts are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from flatout.reporting.monitor.columns import TableColumn

T = TypeVar("T")
GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True)
class FittedColumn:
    """One column as shown; its cells are at most `width` wide and not padded."""

    heading: str
    cells: tuple[str, ...]
    width: int
    left: bool


@dataclass(frozen=True)
class _Measured(Generic[T]):
    """A column with its texts and the width that they need."""

    column: TableColumn[T]
    cells: tuple[str, ...]
    wanted: int

    @property
    def needed(self) -> int:
        least = self.column.least
        return min(self.wanted, least) if least else self.wanted


def fit(columns: Sequence[TableColumn[T]], items: Sequence[T], width: int) -> list[FittedColumn]:
    """The columns that are not empty and have room, with a cell for each item."""
    kept = []
    for column in columns:
        cells = tuple(map(column.text, items))
        wanted = max(cell_len(text) for text in (column.heading, *cells))
        if any(cell.strip(" -") for cell in cells):
            kept.append(_Measured(column, cells, wanted))
    while len(kept) > 1 and _least_width(kept) > width:
        kept.remove(min(kept, key=lambda each: each.column.importance))
    spare = max(0, width - _least_width(kept))
    fitted = []
    for each in kept:
        column = each.column
        given = min(each.wanted, each.needed + spare)
        spare -= given - each.needed
        given = max(1, min(given, width))
        cells = tuple(cut(cell, given, column.latest) for cell in each.cells)
        fitted.append(FittedColumn(cut(column.heading, given), cells, given, column.left))
    return fitted


def cut(text: str, width: int, latest: bool = False) -> str:
    """The text in at most `width` cells. latest: keep its end, as for a curve."""
    if cell_len(text) <= width:
        return text
    if latest:
        return text[-width:]
    return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)


def padded(text: str, width: int, left: bool) -> str:
    """The text in exactly `width` cells."""
    shown = cut(text, width)
    blanks = " " * (width - cell_len(shown))
    return shown + blanks if left else blanks + shown


def wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts in as few lines as they need; none is divided."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{' ' * GAP}{part}" if lines else part
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(cut(part, width))
    return lines


def _least_width(measured: Sequence[_Measured[T]]) -> int:
    return sum(each.needed for each in measured) + GAP * (len(measured) - 1)
