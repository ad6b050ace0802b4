"""What every check's page must have, in all three families of checks."""

from __future__ import annotations

import inspect
import re

HEADINGS = ["What it sees", "Why it matters", "Evidence", "Cure", "References"]


def assert_whole_page(module: object) -> None:
    """The module's docstring is a page: a sentence, then each section with some text."""
    title, _, body = inspect.cleandoc(module.__doc__ or "").partition("\n")
    assert title.endswith("."), "the first line is a sentence"
    assert len(title) <= 97
    parts = re.split(r"^## (.+)$", body, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
    assert list(found) == HEADINGS
    assert [heading for heading, text in found.items() if len(text) < 20] == []
    assert "https://" in found["References"]
