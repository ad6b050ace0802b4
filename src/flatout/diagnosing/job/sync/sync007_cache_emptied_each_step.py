"""The loop gives torch's cached memory back to the driver in each step: empty_cache().

## What it sees

`torch.cuda.empty_cache()` is called in the loop.

## Why it matters

Freeing memory waits for the device, and the next step has to ask the driver for it again, which
waits as well. The cache costs nothing: torch reuses it. If memory runs out, the cache is not the
cause.

## Evidence

The calls and their milliseconds a step, the line, and for how long the device is idle after them.

## Cure

Leave it out. Against fragmentation: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. The gain:
the idle time after the calls, or their time on the host where that is all that is known.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="SYNC007", severity=Severity.WARNING, since="0.2.0")
CALL = "empty_cache"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all such calls."""
    syncs = stalls.of(profile, stalls.Stall.CACHE)
    watched_calls = profile.seen.calls if profile.seen is not None else ()
    calls = [
        call
        for call in watched_calls
        if call.name.endswith(CALL) and call.calls >= stalls.EACH_STEP
    ]
    if not savings.accelerated(profile) or not (syncs or calls):
        return
    idle = sum(sync.idle_ms for sync in syncs)
    spent = sum(call.s for call in calls) * 1000
    saves = savings.within(profile, max(idle, min(spent, profile.anatomy.part(*WAITS))))
    if not savings.worth(profile, saves):
        return
    number = sum(call.calls for call in calls) or sum(sync.calls for sync in syncs)
    where = next((call.where for call in calls if call.where), None)
    where = where or next((str(sync.where) for sync in syncs if sync.where is not None), None)
    yield Diagnosis(
        title=f"torch's memory cache is emptied {number:,.1f} times a step",
        evidence=f"torch.cuda.empty_cache(): {number:,.1f} calls and {units.milliseconds(spent)} "
        f"a step, the device idle for {units.milliseconds(idle)} after it",
        cure=Cure(
            "Leave the call out: torch reuses its cache.",
            savings.lines(where, "torch.cuda.empty_cache()"),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(saves)} of a step in which the device waits for these calls",
    )
