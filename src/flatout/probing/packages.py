"""Every package in the user's interpreter, as that interpreter reports it."""

from __future__ import annotations

import os
import time
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.listing import CondaPackage, InstalledPackage, Listing
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

LIMIT_S = 30.0


def look(python: str, limit_s: float = LIMIT_S) -> Listing:
    """What is installed there. Raises UserError if the interpreter does not answer."""
    command = [python, str(conversation.program("packages"))]
    try:
        with Conversation(command, conversation.environment(os.environ)) as talk:
            deadline = time.monotonic() + limit_s
            while (answer := talk.answer(deadline)) is not None:
                if answer:
                    return _listing(answer)
            if talk.running:
                raise UserError(f"{python} did not answer within {limit_s:.0f} s", _hint(), 1)
            raise UserError(f"{python} cannot list its packages: {talk.how_it_ended()}", _hint(), 1)
    except (OSError, KeyError, TypeError) as error:
        raise UserError(f"{python} cannot list its packages: {error}", _hint(), 1) from None


def _hint() -> str:
    return "name another interpreter: --python"


def _listing(answer: dict[str, Any]) -> Listing:
    conda = answer["conda"]
    return Listing(
        python=answer["python"],
        system=answer["system"],
        machine=answer["machine"],
        packages=tuple(_package(entry) for entry in answer["packages"]),
        conda=None if conda is None else tuple(CondaPackage(**entry) for entry in conda),
    )


def _package(entry: dict[str, Any]) -> InstalledPackage:
    direct = entry["direct_url"] or {}
    vcs = direct.get("vcs_info") or {}
    return InstalledPackage(
        name=entry["name"],
        version=entry["version"],
        installer=entry["installer"],
        url=direct.get("url"),
        editable=bool((direct.get("dir_info") or {}).get("editable")),
        folder="dir_info" in direct,
        vcs=vcs.get("vcs"),
        commit=vcs.get("commit_id"),
    )
