"""Talking with a program: its lines, the limits, and that nothing of it is left."""

from __future__ import annotations

import os
import sys
import time

import pytest

from flatout.probing import conversation
from flatout.probing.conversation import Conversation
from probing.fake_packages import gone

ENOUGH_S = 120.0
"""Only what waits for a child that sleeps needs so long."""
HOLDS_THE_PIPE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
"""


def talk(code: str) -> Conversation:
    return Conversation([sys.executable, "-c", code], os.environ)


def test_lines_and_the_end() -> None:
    deadline = time.monotonic() + ENOUGH_S
    with talk("print('one'); print('two', end='')") as program:
        assert [program.line(deadline) for _ in range(4)] == [
            f"one{os.linesep}",
            "two",
            None,
            None,
        ]
        assert program.how_it_ended() == "ended with exit code 0"


def test_the_error_is_the_last_line_it_wrote() -> None:
    with talk("import sys; sys.exit('first\\nno libcuda\\n\\n')") as program:
        assert program.line(time.monotonic() + ENOUGH_S) is None
        assert program.how_it_ended() == "no libcuda"


def test_a_deadline() -> None:
    with talk("import time; time.sleep(300)") as program:
        assert program.line(time.monotonic() + 0.1) is None
        assert program.running
    assert not program.running


@pytest.mark.slow
def test_a_child_that_holds_the_pipe_keeps_nobody_waiting() -> None:
    began = time.monotonic()
    with talk(HOLDS_THE_PIPE) as program:
        line = program.line(began + ENOUGH_S)
        assert program.line(began + ENOUGH_S) is None
    assert time.monotonic() - began < ENOUGH_S
    if os.name != "nt":  # its session ends with it
        assert gone(int(line or "0"))


def test_an_interrupted_conversation_leaves_nothing() -> None:
    code = """
import os, sys
from flatout.probing.conversation import Conversation
talk = Conversation([sys.executable, "-c", "import time; time.sleep(300)"], os.environ)
print(talk._process.pid, flush=True)
raise KeyboardInterrupt
"""
    with talk(code) as program:
        pid = int(program.line(time.monotonic() + ENOUGH_S) or "0")
        assert program.line(time.monotonic() + ENOUGH_S) is None
        assert gone(pid)


def test_all_that_a_program_says() -> None:
    command = [sys.executable, "-c", "print('release 12.4')"]
    assert (conversation.output(command, os.environ, ENOUGH_S) or "").strip() == "release 12.4"
    assert (
        conversation.output([*command[:2], "import time; time.sleep(300)"], os.environ, 0.1) is None
    )
    assert conversation.output(["./no-such-program"], os.environ, 1.0) is None


def test_no_orders_and_no_traces() -> None:
    env = conversation.environment({"FLATOUT_ORDERS": "x", "PYTHONPATH": "y"}, "scratch")
    assert "FLATOUT_ORDERS" not in env
    assert env["PYTHONPATH"] == "y"
    assert env["PYTHONDONTWRITEBYTECODE"] == "1"
    assert env["TRITON_CACHE_DIR"].startswith("scratch")
    assert "TRITON_CACHE_DIR" not in conversation.environment({})
