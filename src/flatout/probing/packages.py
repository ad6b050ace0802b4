"""Every package in the user's interpreter, as that interpreter reports it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from flatout.nouns.errors import UserError
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

LIMIT_S = 30.0


@dataclass(frozen=True)
class InstalledPackages:
    """What is installed in one Python."""

    python: str
    """3.11.7 on Linux x86_64."""
    versions: dict[str, str]
    """Name, in pip's spelling, -> version with its build: 2.9.1+cu128."""

    @property
    def lines(self) -> list[str]:
        """A line each, as pip reads it: numpy==2.3.4."""
        return [f"{name}=={version}" for name, version in sorted(self.versions.items())]


def look(python: str, limit_s: float = LIMIT_S) -> InstalledPackages:
    """What is installed there. Raises UserError if the interpreter does not answer."""
    command = [python, str(conversation.program("packages"))]
    try:
        with Conversation(command, conversation.environment(os.environ)) as talk:
            deadline = time.monotonic() + limit_s
            while (answer := talk.answer(deadline)) is not None:
                if answer:
                    return InstalledPackages(answer["python"], answer["packages"])
            if talk.running:
                raise UserError(f"{python} did not answer within {limit_s:.0f} s", _hint(), 1)
            raise UserError(f"{python} cannot list its packages: {talk.how_it_ended()}", _hint(), 1)
    except (OSError, KeyError) as error:
        raise UserError(f"{python} cannot list its packages: {error}", _hint(), 1) from None


def _hint() -> str:
    return "name another interpreter: --python"
