"""What checks of the training loop ask of the calls seen in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.diagnosing.checks import Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.device_time import Saving
from flatout.nouns import units
from flatout.nouns.finding import Cure
from flatout.nouns.profile import Profile
from flatout_agent.wire import CallSeen

EACH_STEP = 0.5
"""Calls a step from which it counts as each step: one call in a short window is chance."""


def calls(profile: Profile, *names: str, least: float = EACH_STEP) -> list[CallSeen]:
    """The loop's calls of these names, made at least this often a step, longest first."""
    watched_calls = profile.seen.calls if profile.seen is not None else ()
    matching = [call for call in watched_calls if call.name in names and call.calls >= least]
    return sorted(matching, key=lambda call: -call.s)


def ms(calls: Iterable[CallSeen]) -> float:
    """Milliseconds a step of all calls."""
    return sum(max(call.s, 0.0) for call in calls) * 1000


def where(calls: Iterable[CallSeen]) -> str | None:
    """The line of the longest call whose line is known."""
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


def rarer(profile: Profile, calls: list[CallSeen], work: str, every: int) -> Saving:
    """What is saved if one in `every` steps makes these calls. work: "saving"."""
    took = ms(calls)
    reason = f"{work} takes {units.milliseconds(took)} a step; one in {every} steps is enough"
    return device_time.of_step(profile, took * (1 - 1 / every), reason)


def diagnosis(
    title: str, calls: list[CallSeen], saving: Saving, cure: str, lines: Sequence[str]
) -> Diagnosis:
    """Calls that nearly every step makes. lines: the line now, then its replacement."""
    line = where(calls)
    return Diagnosis(
        title=f"{title}: {units.milliseconds(ms(calls))}",
        evidence=evidence(calls),
        cure=Cure(cure, savings.lines(line, *lines)),
        severity=saving.severity,
        where=line,
        saves_ms=saving.ms,
        reason=saving.reason,
    )
