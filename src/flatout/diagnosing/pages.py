"""The page of each finding code: its check's docstring, as Markdown.

It is read from the check's source, see `nouns.page`.
"""

from __future__ import annotations

import difflib

from flatout.diagnosing import checks
from flatout.diagnosing.checks import CheckFile
from flatout.nouns.errors import UserError
from flatout.nouns.page import Page, read_page


def every() -> tuple[Page, ...]:
    """All pages, by code."""
    return tuple(map(_page, checks.files()))


def find(name: str) -> Page | None:
    """The page of a code or of a check's id, in any case, or None if there is none."""
    file = checks.find(name)
    return None if file is None else _page(file)


def of_signature(name: str, language: str = "en") -> str:
    """The Markdown page of a signature's id. Raises UserError with similar ids if there is none."""
    from flatout.explaining import described
    from flatout.knowledge import boosts

    markdown = described.find(name, language)
    if markdown is None:
        alike = difflib.get_close_matches(name.strip().lower(), boosts.ids(), n=1, cutoff=0.8)
        near = (*alike, *described.nearest(name), *nearest(name))[:3]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        told = f"no finding, boost or error is called {name!r}{hint}"
        raise UserError(told, "to explain a message of one word, pipe it in", 1)
    return markdown


def nearest(text: str) -> tuple[str, ...]:
    """Codes and ids most like an unknown one, best first."""
    word = text.strip().lower().replace("_", "-")
    names = [name for file in checks.files() for name in (file.code.lower(), file.id)]
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    close = close or [name for name in names if word and word in name][:3]
    return tuple(name.upper() if any(c.isdecimal() for c in name) else name for name in close)


def _page(file: CheckFile) -> Page:
    return read_page(file.path, file.code, file.id, "CHECK")
