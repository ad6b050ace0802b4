"""Frames of another thread that goes on meanwhile, under the worst conditions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from flatout_agent.watch.profile import frames

LOOKS = 2000
HOSTILE = """
import gc, sys, threading
from flatout_agent.watch.profile import frames

LOOKS = int(sys.argv[1])
odd = []


def function(number):
    names = " = ".join([f"a{at}" for at in range(number)] + ["_"])
    return (
        f"def f{number}(depth):\\n"
        f"    {names} = {number}\\n"
        f"    if depth:\\n"
        f"        return functions[(depth * 7 + {number}) % 60](depth - 1)\\n"
        f"    return sum(range(30))\\n"
    )


names = {}
exec("".join(map(function, range(60))), names)
functions = names["functions"] = [names[f"f{number}"] for number in range(60)]
module = sys._getframe().f_code


def look():
    ident = threading.main_thread().ident
    try:
        for _ in range(LOOKS):
            seen = frames.instructions(ident, 80)
            if not seen or seen[-1][0] is not module:
                odd.append([code.co_name for code, _ in seen])
    finally:
        ended.set()


def collected(phase, info):
    sum(range(50))  # hands the interpreter over, where another thread waits for it


gc.callbacks.append(collected)
gc.set_threshold(3)
sys.setswitchinterval(5e-6)
ended = threading.Event()
threading.Thread(target=look, daemon=True).start()
while not ended.is_set():
    kept = []
    for number in range(60):
        kept.append([])
        functions[number](number % 8)
print(len(odd), odd[:3], gc.isenabled())
"""


def ident_of(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return thread.ident


def test_the_stack_of_another_thread_from_its_innermost_frame() -> None:
    held = threading.Event()

    def inner() -> None:
        held.wait()

    def outer() -> None:
        inner()

    thread = threading.Thread(target=outer, daemon=True)
    thread.start()
    try:
        seen = frames.instructions(ident_of(thread), 80)
        # It has come to rest where two looks see it wait at the same place.
        while names(seen)[:2] != ["wait", "wait"] or at_its_top(thread) != seen[:2]:
            time.sleep(0.05)
            seen = frames.instructions(ident_of(thread), 80)
    finally:
        held.set()
        thread.join()
    assert names(seen)[2:4] == ["inner", "outer"]
    assert line(seen, inner) == inner.__code__.co_firstlineno + 1
    assert frames.instructions(ident_of(thread), 80) == []  # it has ended


def at_its_top(thread: threading.Thread) -> list[frames.Instruction]:
    return frames.instructions(ident_of(thread), 2)


def names(seen: list[frames.Instruction]) -> list[str]:
    return [code.co_name for code, _ in seen]


def line(seen: list[frames.Instruction], function: Callable[[], None]) -> int:
    (at,) = [instruction for code, instruction in seen if code is function.__code__]
    lines = function.__code__.co_lines()
    (number,) = {number for first, last, number in lines if first <= at < last}
    assert number is not None
    return number


@pytest.mark.slow
def test_a_thread_that_goes_on_is_seen_whole_and_the_process_lives() -> None:
    """Every stack ends at the module; with a loop in Python, this ended with wrong memory."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(LOOKS)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0 [] True"
