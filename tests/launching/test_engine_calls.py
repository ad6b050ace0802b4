from __future__ import annotations

import sys
import time

import pytest

from flatout.launching import engine_calls
from flatout.nouns.errors import UserError


def test_what_is_not_there_and_what_does_not_answer() -> None:
    with pytest.raises(UserError, match="no-such-tool is not installed here"):
        engine_calls.need("no-such-tool", "install it")
    assert engine_calls.ask(["no-such-tool"]).returncode == -1
    slow = engine_calls.ask([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.2)
    assert (slow.returncode, "did not answer within" in slow.said) == (-1, True)
    words = engine_calls.ask([sys.executable, "-c", "print(input())"], given="abc\n")
    assert (words.returncode, words.stdout) == (0, "abc\n")


def test_lines_of_a_program_that_goes_on_until_it_is_closed() -> None:
    program = "import sys\nprint('a', flush=True)\nsys.stdin.read()\nprint('closed')"
    lines = engine_calls.lines_of([sys.executable, "-c", program], held=True)
    deadline = time.monotonic() + 120
    while (line := next(lines)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert line == "a"
    assert next(lines) is None
    lines.close()  # type: ignore[attr-defined]


def test_lines_end_with_the_program() -> None:
    command = [sys.executable, "-c", "import sys; print('a'); print('b', file=sys.stderr)"]
    assert [line for line in engine_calls.lines_of(command, errors=False) if line] == ["a"]
