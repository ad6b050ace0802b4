"""Cells and rows of the tables on a profile's page, and what they share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Place
from flatout.reporting import plain
from flatout.reporting.profile import words

AT_MOST = 400
"""The most rows of one table; the rest are in the JSON."""
FEW = 12
"""The most rows of a table that is read as a whole."""
HOST_KINDS = {
    HostKind.PYTHON: "your Python",
    HostKind.TORCH: "torch",
    HostKind.LIBRARY: "other packages",
    HostKind.WAITING: "waiting",
}
SHADES = {
    HostKind.PYTHON: Kind.USER,
    HostKind.TORCH: Kind.DISPATCH,
    HostKind.LIBRARY: Kind.LIBRARY,
    HostKind.WAITING: Kind.BLOCKED,
}
"""The part of the anatomy from which a kind of host time has its colour."""


@dataclass(frozen=True)
class Cell:
    """One cell; `value` is its sort key if that is not its text."""

    text: str
    value: float | None = None
    style: str = ""
    """One of name, code, where, short, kind, slow."""


@dataclass(frozen=True)
class ReportRow:
    """One row, with the time that it represents."""

    cells: tuple[Cell, ...]
    ms: float = 0.0
    kind: Kind | HostKind | None = None


@dataclass(frozen=True)
class Table:
    """One table; with `many`, it is too long to read and can be sorted and filtered."""

    id: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    many: bool = False

    def numbers(self, column: int) -> bool:
        """Whether the column holds numbers."""
        return any(row.cells[column].value is not None for row in self.rows)

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds that occur, with their names, to filter by."""
        present = {str(row.kind) for row in self.rows}
        names = {str(kind): name for kind, name in (*words.KINDS.items(), *HOST_KINDS.items())}
        return {kind: name for kind, name in names.items() if kind in present}


def many(id_: str, title: str, columns: tuple[str, ...], rows: list[ReportRow]) -> Table:
    """A sortable, filterable table of the costliest rows."""
    note = "Per step."
    if len(rows) > AT_MOST:
        omitted = rows[AT_MOST:]
        time = units.milliseconds(sum(row.ms for row in omitted))
        note = f"Per step. {len(omitted):,} more, {time} together, are in the JSON (--json)."
    shown = sorted(rows[:AT_MOST], key=lambda row: -row.ms)
    return without_empty(Table(id_, title, note, columns, tuple(shown), many=True))


def few(table: Table) -> Table:
    """The table without its tail and its empty columns."""
    note = table.note
    if len(table.rows) > FEW:
        note = f"{note} {len(table.rows) - FEW:,} smaller ones are in the JSON (--json)."
    rows = table.rows[:FEW]
    return without_empty(dataclasses.replace(table, note=note, rows=rows))


def without_empty(table: Table) -> Table:
    """The table without its empty columns."""
    indices = [
        index
        for index in range(len(table.columns))
        if any(row.cells[index].text for row in table.rows)
    ]
    rows = tuple(
        dataclasses.replace(row, cells=tuple(row.cells[index] for index in indices))
        for row in table.rows
    )
    columns = tuple(table.columns[index] for index in indices)
    return dataclasses.replace(table, columns=columns, rows=rows)


def name(text: str) -> Cell:
    """The name of a kernel or operator; two lines of it are shown until it is clicked."""
    return Cell(plain.one_line(text).removeprefix("void "), style="name")


def kind(value: Kind) -> Cell:
    """A kind, with its colour."""
    return Cell(words.kind(value), style=f"kind k-{value}")


def host_kind(value: HostKind, package: str = "") -> Cell:
    """Whose code it is, with its colour. package: its name."""
    return Cell(package or HOST_KINDS[value], style=f"kind k-{SHADES[value]}")


def where(place: Place | None) -> Cell:
    """file:line, or empty if not known."""
    return Cell(plain.one_line(str(place)) if place else "", style="where")


def code(text: str) -> Cell:
    """A line of source; two screen lines of it are shown until it is clicked."""
    return Cell(plain.one_line(text), style="code")


def milliseconds(value: float) -> Cell:
    """Milliseconds; short times in microseconds."""
    small = 0 < abs(value) < 0.1
    return Cell(f"{value * 1000:.3g} us" if small else units.milliseconds(value), value)


def each(ms: float, calls: float) -> Cell:
    """The time of one call."""
    return milliseconds(ms / calls) if calls else Cell("", 0.0)


def number(value: float) -> Cell:
    """A mean over steps: 12 calls, 0.5 calls."""
    whole = value >= 9.95 or value == round(value)
    text = f"{value:,.0f}" if whole else f"{value:.2g}"
    return Cell(text, value)


def share(ms: float, step_ms: float) -> Cell:
    """The share of the step."""
    value = ms / step_ms if step_ms else 0.0
    return Cell(units.share(value), value)


def percent(value: float | None) -> Cell:
    """A percentage, or empty if not known."""
    return Cell("" if value is None else units.share(value), value if value is not None else -1.0)
