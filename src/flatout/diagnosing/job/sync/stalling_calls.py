"""Calls in nearly every step for which the device waits: their time and their cost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flatout.diagnosing.job import savings, stalls
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS
from flatout.nouns.profile import Profile


@dataclass(frozen=True)
class StallingCalls:
    """All calls of one kind. Means per step."""

    number: float
    ms: float
    """Milliseconds in the calls themselves as watched; 0 if only the trace shows them."""
    idle_ms: float
    """Milliseconds for which the device waits."""
    saves_ms: float
    where: str | None
    """file:line of the first call whose line is known."""

    @property
    def reason(self) -> str:
        """How `saves_ms` was computed."""
        saved = units.milliseconds(self.saves_ms)
        return f"{saved} of a step in which the device waits for these calls"


def of(profile: Profile, stall: stalls.Stall, names: Collection[str]) -> StallingCalls | None:
    """The calls of these names and the stalls of this kind, or None if not worth reporting."""
    if not savings.accelerated(profile):
        return None
    syncs = stalls.of(profile, stall)
    watched_calls = profile.seen.calls if profile.seen is not None else ()
    calls = [
        call for call in watched_calls if call.name in names and call.calls >= stalls.EACH_STEP
    ]
    if not (syncs or calls):
        return None
    spent = sum(call.s for call in calls) * 1000
    idle = max(sum(sync.idle_ms for sync in syncs), min(spent, profile.anatomy.part(*WAITS)))
    saves = savings.within(profile, idle)
    if not savings.worth(profile, saves):
        return None
    number = sum(call.calls for call in calls) or sum(sync.calls for sync in syncs)
    places = (str(sync.where) for sync in syncs if sync.where is not None)
    where = next((call.where for call in calls if call.where), None) or next(places, None)
    return StallingCalls(number, spent, idle, saves, where)
