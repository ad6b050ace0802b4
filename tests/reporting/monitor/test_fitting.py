"""Tables that fit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from flatout.reporting.monitor.columns import TableColumn
from flatout.reporting.monitor.fitting import GAP, fit

COLUMNS = [
    TableColumn[str]("name", lambda item: item, 9, left=True, least=4),
    TableColumn[str]("number", lambda item: str(len(item)), 5),
    TableColumn[str]("curve", lambda item: "12345678", 2, least=5, latest=True),
    TableColumn[str]("unknown", lambda item: "-", 8),
]


def test_the_least_important_goes_first_and_long_texts_are_cut() -> None:
    def headings(width: int) -> list[str]:
        return [column.heading for column in fit(COLUMNS, ["abcdefghij", "x"], width)]

    assert headings(80) == ["name", "number", "curve"]
    assert headings(16) == ["name", "number"]
    assert headings(8) == ["name"]
    name, _, curve = fit(COLUMNS, ["abcdefghij", "x"], 19)
    assert name.cells == ("abc…", "x")
    assert curve.cells == ("45678", "45678")


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=4), st.integers(1, 60))
def test_nothing_is_wider_than_it_may_be(items: list[str], width: int) -> None:
    columns = fit(COLUMNS, items, width)
    assert sum(column.width for column in columns) + GAP * (len(columns) - 1) <= width
    assert all(cell_len(cell) <= column.width for column in columns for cell in column.cells)
