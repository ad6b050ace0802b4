"""Labels and wrapped text: rows fit, words stay whole, and nothing is lost."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flatout.reporting import paragraphs

WORDS = st.lists(st.text("abc-这个。", min_size=1, max_size=30), min_size=1, max_size=20)


@given(WORDS, st.integers(30, 90), st.sampled_from(["", "    ", "# "]))
def test_words_stay_whole_and_all_are_there(words: list[str], width: int, hanging: str) -> None:
    rows = paragraphs.wrapped(" ".join(words), width, hanging)
    assert all(row.startswith(hanging) for row in rows[1:])
    assert " ".join([rows[0], *(row[len(hanging) :] for row in rows[1:])]).split() == words
    assert all(cell_len(row) <= width or " " not in row[len(hanging) :] for row in rows)


@given(WORDS, st.integers(2, 40))
def test_what_is_folded_fits_and_has_no_empty_row(words: list[str], width: int) -> None:
    rows = paragraphs.wrapped(" ".join(words), width, fold=True)
    assert all(cell_len(row) <= width and row == row.strip() and row for row in rows)
    assert "".join(rows).replace(" ", "") == "".join(words)


def test_the_label_is_padded_by_cells_and_stands_once() -> None:
    lines = list(paragraphs.paragraph("依据", "this is longer than it", 22, "bold", "1. "))
    assert [line.text for line in lines] == [
        "依据      1. this is",
        "             longer",
        "             than it",
    ]
    assert lines[0].styles == ((0, 2, "bold"),)


def test_what_is_shown_is_neither_wrapped_nor_markup() -> None:
    file = io.StringIO()
    console = Console(file=file, width=20)
    paragraphs.show(console, paragraphs.styled("[bold] :smile: " + "x" * 40 + "  "))
    assert file.getvalue() == "[bold] :smile: " + "x" * 40 + "\n"
    assert not paragraphs.animated(console)
