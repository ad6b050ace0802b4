"""The only access to SkyPilot: its command, with its messages made plain."""

from __future__ import annotations

import json
import re
from typing import Any

from flatout.launching import engine_calls
from flatout.launching.engine_calls import ToolAnswer
from flatout.nouns import escapes
from flatout.nouns.errors import UserError

INSTALL = "pip install 'skypilot[aws]' (or gcp, azure, kubernetes ...), then: sky check"
LIMIT_S = 120.0
"""Long, because its first command starts its API server on this machine."""


def ask(*words: str, limit_s: float = LIMIT_S) -> ToolAnswer:
    """SkyPilot's answer, without colours."""
    answer = engine_calls.ask(["sky", *words], limit_s)
    return ToolAnswer(
        answer.returncode, escapes.removed(answer.stdout), escapes.removed(answer.stderr)
    )


def document(*words: str) -> Any:
    """The JSON that it prints after its other output, or None if there is none."""
    answer = ask(*words, "--output", "json")
    for begin in re.finditer(r"(?m)^\s*[\[{]", answer.stdout):
        try:
            found, _ = json.JSONDecoder().raw_decode(answer.stdout[begin.start() :].lstrip())
        except ValueError:
            continue
        return found
    return None


def clouds() -> list[str]:
    """The clouds that it currently knows it may use. Raises UserError if it does not run."""
    found = document("check")
    if not isinstance(found, dict):
        answer = ask("check")
        raise UserError(f"sky check does not end well: {complaint(answer)}", "try: sky check")
    workspaces = [entry for entry in found.values() if isinstance(entry, dict)]
    return sorted({str(cloud) for entry in workspaces for cloud in entry})


def complaint(answer: ToolAnswer) -> str:
    """The line that says why."""
    lines = [line.strip() for line in (answer.stderr + "\n" + answer.stdout).splitlines()]
    marked = [line for line in lines if re.match(r"(sky\.exceptions\.|ValueError|Error)", line)]
    text = (marked or [answer.said])[-1]
    return re.sub(r"^sky\.exceptions\.", "", text)
