"""What `doctor --deep` tries on the devices, in the user's interpreter.

A test that hangs, or that crashes its process, has failed; the others still run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping

from flatout.nouns.decoding import decode
from flatout.nouns.selftest import SelfTest
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

FIRST = ("import torch", "find devices")
"""Without these, no other test can run."""
LIMIT_S = 60.0
SLOW_S = 180.0
"""For tests declared as slow, which load or generate much code."""


def run(
    executable: str,
    limit_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda name: None,
) -> tuple[SelfTest, ...]:
    """Every test with its outcome. limit_s: for each test, or None for the default.

    tell: called with the name of each test as it begins.
    """
    base = os.environ if environ is None else environ
    tests: list[SelfTest] = []
    prefix = "flatout-selftest-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        env = conversation.environment(base, scratch)
        script = str(conversation.program("selftest"))
        while True:
            command = [executable, script, *(test.name for test in tests)]
            new_tests, finished = _run_process(command, env, limit_s, tell)
            tests += new_tests
            is_stuck = not new_tests or any(
                test.name in FIRST and test.passed is not True for test in new_tests
            )
            if finished or is_stuck:
                return tuple(tests)


def _run_process(
    command: list[str],
    env: Mapping[str, str],
    limit_s: float | None,
    tell: Callable[[str], None],
) -> tuple[list[SelfTest], bool]:
    """The tests of one process until it ends, and whether it ran all of them."""
    tests: list[SelfTest] = []
    running, slow, started_at = FIRST[0], True, time.monotonic()
    try:
        with Conversation(command, env) as talk:
            while (answer := talk.answer(started_at + _limit_s(slow, limit_s))) is not None:
                if "done" in answer:
                    return tests, True
                if isinstance(answer.get("begin"), str):
                    running, started_at = answer["begin"], time.monotonic()
                    slow = answer.get("slow") is True
                    tell(running)
                elif (test := decode(SelfTest, answer)) is not None:
                    tests.append(test)
                    running, slow, started_at = "", False, time.monotonic()
            is_late = talk.running
            seconds = time.monotonic() - started_at
            ending = f"did not end within {seconds:.3g} s" if is_late else talk.how_it_ended()
    except OSError as error:
        running, seconds = FIRST[0], 0.0
        ending = f"{command[0]} cannot be started: {error.strerror or error}"
    if running and running not in command:
        tests.append(SelfTest(running, False, message=ending, seconds=round(seconds, 3)))
    return tests, False


def _limit_s(slow: bool, limit_s: float | None) -> float:
    default_s = SLOW_S if slow else LIMIT_S
    return default_s if limit_s is None else limit_s
