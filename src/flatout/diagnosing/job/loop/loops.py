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
    watched_calls = profile.seen.calls if profile.seen is not None else ()
    matching = [call for call in watched_calls if call.name in names and call.calls >= least]
    return sorted(matching, key=lambda call: -call.s)


def ms(calls: Iterable[CallSeen]) -> float:
    """Milliseconds a step of all of them."""
    return sum(max(call.s, 0.0) for call in calls) * 1000


def where(calls: Iterable[CallSeen]) -> str | None:
    """The line of the longest with a line."""
    return next((call.where for call in calls if call.where), None)


def evidence(calls: list[CallSeen], most: int = 3) -> str:
    """Like torch.save at train.py:40: 1 calls, 35.2 ms a step."""
    parts = [
        f"{call.name}{f' ({call.detail})' if call.detail else ''}"
        f"{f' at {call.where}' if call.where else ''}: {call.calls:.3g} calls, "
        f"{units.milliseconds(call.s * 1000)} a step"
        for call in calls[:most]
    ]
    return "; ".join([*parts, f"and {len(calls) - most} more"] if len(calls) > most else parts)


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
        places = [place for place in re.findall(pattern, text) if not FOREIGN.search(place[0])]
        if places:
            file, line = places[-1]
            return f"{file}:{line}"
    return None
