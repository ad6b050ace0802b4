"""The building block of all screens: a label in the first column, wrapped text beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatout.reporting import plain

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 10
"""Width of the first column."""
WIDEST = 100
"""The most columns of text, however wide the terminal is."""
NARROWEST = 40
"""The least columns of text."""


@dataclass(frozen=True)
class Line:
    """One line and its styled parts: (begin, end, a style of rich's) each."""

    text: str
    styles: tuple[tuple[int, int, str], ...] = ()


def styled(text: str, style: str = "", length: int | None = None) -> Line:
    """A line whose first `length` letters have a style; None means all of them."""
    return Line(text, ((0, len(text) if length is None else length, style),))


def paragraph(
    label: str, text: str, width: int, style: str = "", mark: str = "", fold: bool = False
) -> Iterator[Line]:
    """The label in the first column, the text beside it, wrapped after its mark ("1. ").

    style: the label's. fold: as for `wrapped`.
    """
    for row in wrapped(plain.one_line(text), width - LABEL - len(mark), fold=fold):
        yield styled(f"{_padded(label)}{mark}{row}", style, len(label))
        label, mark = "", " " * len(mark)


def whole(label: str, text: str, style: str) -> Line:
    """Paths and commands stay on one line, however long, so that they can be copied."""
    return styled(f"{_padded(label)}{plain.one_line(text)}", style, len(label))


def wrapped(text: str, width: int, hanging: str = "", fold: bool = False) -> list[str]:
    """`text` in rows of at most `width` cells, at least one; it breaks at ASCII white space.

    hanging: begins each row but the first. fold: break a word that is longer than a row, as in
    Chinese, where nothing separates words; otherwise it stays whole and overflows.
    """
    from rich.cells import cell_len, chop_cells

    rows = [""]
    for word in re.split(r"\s", text, flags=re.ASCII):
        room = width - (len(hanging) if len(rows) > 1 else 0)
        extended = f"{rows[-1]} {word}" if rows[-1] else word
        if cell_len(extended) <= room:
            rows[-1] = extended
            continue
        pieces = chop_cells(word, room) if fold and cell_len(word) > room else [word]
        rows = [*rows[:-1], *([rows[-1]] if rows[-1] else ()), *pieces]
    return [rows[0], *(f"{hanging}{row}" for row in rows[1:])]


def width_of(console: Console) -> int:
    """The width to which text is wrapped."""
    return max(min(console.width, WIDEST), NARROWEST)


def animated(console: Console) -> bool:
    """Whether lines may move on it: it is a terminal, not a log file that FORCE_COLOR disguises."""
    isatty = getattr(console.file, "isatty", lambda: False)
    return bool(console.is_interactive and isatty())


def show(console: Console, line: Line) -> None:
    """Print the line unchanged: neither wrapped nor read for markup."""
    from rich.text import Text

    text = Text(plain.encodable(line.text.rstrip(), console.encoding))
    for begin, end, style in line.styles:
        text.stylize(style, begin, end)
    console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _padded(label: str) -> str:
    from rich.cells import cell_len

    return label + " " * max(LABEL - cell_len(label), 1)
