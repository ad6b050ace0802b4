import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.reporting import plain


@given(st.text())
def test_nothing_that_moves_a_cursor_or_turns_text_round_gets_through(text: str) -> None:
    assert all(line.isprintable() for line in plain.lines(text))
    assert plain.one_line(text).isprintable()


def test_escape_sequences_go_whole() -> None:
    assert plain.one_line("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07") == "red link"


def test_last_line_is_the_error_itself() -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py"\nValueError: bad\n\n  \n'
    assert plain.last_line(trace) == "ValueError: bad"
    assert plain.last_line("") == ""


@pytest.mark.parametrize("width", [0, 1, 2, 3, 5, 50])
def test_cut_is_never_wider_than_asked(width: int) -> None:
    assert len(plain.cut("channels-last", width)) <= width


@pytest.mark.skipif(sys.platform == "win32", reason="quoting differs on Windows")
def test_a_command_can_be_pasted_back() -> None:
    assert plain.command_line(("train.py", "a b", "$x")) == "train.py 'a b' '$x'"


def test_text_that_a_terminal_cannot_show_keeps_its_length() -> None:
    assert plain.encodable("a→\udc80b", "cp1252") == "a??b"
