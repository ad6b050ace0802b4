"""What a crashed program said last is collected from its agents, its stderr file and its signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.running.one import last_words
from flatout_agent import wire

STARTED = wire.Started(pid=7, argv=(), python="3.11", executable="python")
CRASHED = wire.Crashed("Traceback\nValueError: bad\n")
AFTERWARDS = """
import sys
from flatout.running.one.last_words import StderrFile
sys.stderr.write("before\\n")
sys.stderr.flush()
file = StderrFile()
sys.stderr.write("after\\n" * int(sys.argv[1]))
sys.stderr.flush()
sys.stdout.buffer.write(file.tail())
"""


def test_exceptions_come_first_with_their_rank_where_there_are_several() -> None:
    texts = last_words.collected([(7, STARTED), (7, CRASHED)], 1, b"tail\n")
    assert texts == [b"Traceback\nValueError: bad\n", b"tail\n"]
    other = wire.Started(pid=8, argv=(), python="3.11", executable="python", rank=1)
    texts = last_words.collected([(7, STARTED), (8, other), (8, CRASHED)], 1, b"")
    assert texts == [b"[rank1]: Traceback\n[rank1]: ValueError: bad\n"]


@pytest.mark.parametrize("code", [-signal.SIGSEGV, 128 + signal.SIGSEGV, 0xC0000005])
def test_a_signal_is_said_as_a_shell_says_it(code: int) -> None:
    assert last_words.collected([], code, b"") == [b"Segmentation fault (core dumped)\n"]


@pytest.mark.parametrize("code", [0, -signal.SIGINT, -signal.SIGTERM])
def test_nothing_of_a_program_that_ended_in_order_or_was_ended(code: int) -> None:
    assert last_words.collected([(7, CRASHED)], code, b"tail") == []
    assert last_words.collected([], 250, b"") == []  # an unknown code


@pytest.mark.skipif(sys.platform == "win32", reason="a file cannot be found by its descriptor")
@pytest.mark.parametrize("times", [1, 100_000])
def test_a_stderr_file_is_read_back_from_where_the_program_began(
    tmp_path: Path, times: int
) -> None:
    path = tmp_path / "err.log"
    with path.open("wb") as stderr:
        command = [sys.executable, "-c", AFTERWARDS, str(times)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=True)
    assert done.stdout == (b"after\n" * times)[-last_words.TAIL_BYTES :]


def test_a_pipe_is_left_alone() -> None:
    command = [sys.executable, "-c", AFTERWARDS, "1"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == b""


@pytest.mark.skipif(os.name == "nt", reason="POSIX")
def test_a_closed_stderr_is_no_error() -> None:
    code = (
        "from flatout.running.one.last_words import StderrFile; assert StderrFile().tail() == b''"
    )
    done = subprocess.run(f"{sys.executable} -c {code!r} 2>&-", shell=True, check=False)
    assert done.returncode == 0
