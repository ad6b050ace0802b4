"""What checks of the training loop ask of the calls that were seen in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flatout.nouns import units
from flatout.nouns.profile import Profile
from flatout_agent.wire import CallSeen

EACH_STEP = 0.5
"""Calls a step from which on it is each step: one call in a short window is chance."""


def calls(profile: Profile, *names: str, least: float = EACH_STEP) -> list[CallSeen]:
    """Those of these names that the loop makes at least so often a step, the longest first."""
    seen = profile.seen.calls if profile.seen is not None else ()
    found = [one for one in seen if one.name in names and one.calls >= least]
    return sorted(found, key=lambda one: -one.s)


def ms(found: Iterable[CallSeen]) -> float:
    """Milliseconds a step of all of them."""
    return sum(max(one.s, 0.0) for one in found) * 1000


def where(found: Iterable[CallSeen]) -> str | None:
    """The line of the longest with a line."""
    return next((one.where for one in found if one.where), None)


def told(found: list[CallSeen], most: int = 3) -> str:
    """Like torch.save at train.py:40: 1 calls, 35.2 ms a step."""
    parts = [
        f"{one.name}{f' ({one.detail})' if one.detail else ''}"
        f"{f' at {one.where}' if one.where else ''}: {one.calls:.3g} calls, "
        f"{units.milliseconds(one.s * 1000)} a step"
        for one in found[:most]
    ]
    return "; ".join([*parts, f"and {len(found) - most} more"] if len(found) > most else parts)


FOREIGN = re.compile(
    r"flatout_(agent|train)|site-packages|dist-packages|[/\\]torch[/\\]|/lib/python"
)
NAMED = (
    r"# ((?:[A-Za-z]:)?[^\s:]+\.py):(\d+) in ",
    r'File "([^"]+)", line (\d+)',
    r"((?:[A-Za-z]:)?[^\s:(\"']+\.py):(\d+)",
)
"""How torch names lines: behind a guard, in a stack, behind a function."""


def line_in(text: str) -> str | None:
    """The user's line that torch names in a message, file:line; None: it names none."""
    for pattern in NAMED:
        found = [item for item in re.findall(pattern, text) if not FOREIGN.search(item[0])]
        if found:
            file, line = found[-1]
            return f"{file}:{line}"
    return None
