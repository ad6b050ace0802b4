"""Every package in the user's interpreter, as that interpreter reports it."""

from __future__ import annotations

import os
import time

from flatout.nouns.errors import UserError
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

LIMIT_S = 30.0


def listed(python: str, limit_s: float = LIMIT_S) -> str:
    """What is installed there, a line each: numpy==2.3.4. The first line names the Python.

    Raises UserError if the interpreter does not answer.
    """
    command = [python, str(conversation.program("packages"))]
    try:
        with Conversation(command, conversation.environment(os.environ)) as talk:
            deadline = time.monotonic() + limit_s
            while (answer := talk.answer(deadline)) is not None:
                if answer:
                    lines = (f"{name}=={at}" for name, at in sorted(answer["packages"].items()))
                    return "\n".join([f"# Python {answer['python']}", *lines]) + "\n"
            if talk.running:
                raise UserError(f"{python} did not answer within {limit_s:.0f} s", _hint(), 1)
            raise UserError(f"{python} cannot list its packages: {talk.how_it_ended()}", _hint(), 1)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{python} cannot list its packages: {error}", _hint(), 1) from None


def _hint() -> str:
    return "name another interpreter: --python"
