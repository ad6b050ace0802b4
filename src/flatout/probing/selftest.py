"""What `doctor --deep` tries on the devices, in the user's interpreter.

A test that hangs, or that takes its process with it, has failed; the others still run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping

from flatout.nouns.decoding import decode
from flatout.nouns.selftest import SelfTest
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

FIRST = ("import torch", "find devices")
"""Without these there is nothing else to try."""
LIMIT_S = 60.0
SLOW_S = 180.0
"""For what reads or makes a lot of code."""
SLOW = ("import torch", "torch.compile")


def run(
    executable: str, limit_s: float | None = None, environ: Mapping[str, str] | None = None
) -> tuple[SelfTest, ...]:
    """Every test with its outcome. limit_s: for each of them; None: what is usual."""
    base = os.environ if environ is None else environ
    done: list[SelfTest] = []
    prefix = "flatout-selftest-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        env = conversation.environment(base, scratch)
        script = str(conversation.program("selftest"))
        while True:
            command = [executable, script, *(test.name for test in done)]
            found, finished = _one_process(command, env, limit_s)
            done += found
            stuck = not found or any(
                test.name in FIRST and test.passed is not True for test in found
            )
            if finished or stuck:
                return tuple(done)


def _one_process(
    command: list[str], env: Mapping[str, str], limit_s: float | None
) -> tuple[list[SelfTest], bool]:
    """The tests of one process, until one fails; whether it came to the end of them all."""
    found: list[SelfTest] = []
    running, began = FIRST[0], time.monotonic()
    try:
        with Conversation(command, env) as talk:
            while (said := talk.answer(began + _limit_s(running, limit_s))) is not None:
                if "done" in said:
                    return found, True
                if isinstance(said.get("begin"), str):
                    running, began = said["begin"], time.monotonic()
                elif (test := decode(SelfTest, said)) is not None:
                    found.append(test)
                    running, began = "", time.monotonic()
            late = talk.running
            spent = time.monotonic() - began
            ending = f"no end within {spent:.3g} s" if late else talk.how_it_ended()
    except OSError as error:
        running, spent = FIRST[0], 0.0
        ending = f"{command[0]} cannot be started: {error.strerror or error}"
    if running and running not in command:
        found.append(SelfTest(running, False, message=ending, seconds=round(spent, 3)))
    return found, False


def _limit_s(name: str, limit_s: float | None) -> float:
    usual = SLOW_S if name.startswith(SLOW) else LIMIT_S
    return usual if limit_s is None else limit_s
