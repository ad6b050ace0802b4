"""Escape sequences are taken out of text, and nothing else is."""

from __future__ import annotations

import pytest

from flatout.nouns import escapes


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31merror\x1b[0m: no", "error: no"),
        ("\x1b[2K\x1b[1Gdone", "done"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1bMup", "up"),
        ("x[0] = [31m", "x[0] = [31m"),
    ],
)
def test_what_is_removed(text: str, plain: str) -> None:
    assert escapes.removed(text) == plain
    assert escapes.BYTES.sub(b"", text.encode()) == plain.encode()


def test_in_a_log_a_title_without_an_end_does_not_hide_all_that_follows() -> None:
    assert escapes.BYTES.sub(b"", b"\x1b]" + b"t" * 400 + b"\nerror").endswith(b"\nerror")
