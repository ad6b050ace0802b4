"""The page of each alert's code: its rule's own description, as Markdown."""

from __future__ import annotations

from pathlib import Path

from flatout.nouns.page import Page, read_page
from flatout.watching import rules


def every() -> tuple[Page, ...]:
    """All pages, by code."""
    return tuple(map(_page, rules.files()))


def find(name: str) -> Page | None:
    """The page of a code or a rule's id, in any case, or None if there is none."""
    word = name.strip().lower().replace("_", "-")
    pages = (_page(path) for path in rules.files() if word in (_code(path).lower(), _id(path)))
    return next(pages, None)


def _code(path: Path) -> str:
    return path.stem.partition("_")[0].upper()


def _id(path: Path) -> str:
    return path.stem.partition("_")[2].replace("_", "-")


def _page(path: Path) -> Page:
    return read_page(path, _code(path), _id(path), "RULE")
