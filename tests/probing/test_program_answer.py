"""Outside programs, real ones: those that answer, fail, hang and are not there."""

from __future__ import annotations

import sys
import time

import pytest

from flatout.probing.program_answer import ProgramAnswer, ask


def python(program: str, limit_s: float = 20) -> ProgramAnswer:
    return ask([sys.executable, "-c", program], limit_s)


def test_an_answer() -> None:
    program = "import sys; sys.stdout.write('one'); sys.stderr.write('two'); sys.exit(3)"
    assert python(program) == ProgramAnswer("one", 3, errors="two")


def test_bytes_that_are_no_text() -> None:
    assert python("import os; os.write(1, bytes([255, 65]))").text == "\ufffdA"


def test_it_speaks_english_and_is_given_no_input() -> None:
    assert python("import os, sys; print(os.environ['LC_ALL'], sys.stdin.read())").text == "C \n"


@pytest.mark.parametrize("command", ["flatout-no-such-program", "\0"])
def test_one_that_cannot_be_started(command: str) -> None:
    answer = ask([command], 1)
    assert (answer.text, answer.code) == ("", None)
    assert answer.problem


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_its_children() -> None:
    child = "import time; time.sleep(600)"
    start = time.monotonic()
    answer = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{child}'])", 1)
    assert time.monotonic() - start < 120
    assert answer == ProgramAnswer("", None, "did not answer within 1 s")
