"""Python's garbage collector runs in the middle of the steps.

## What it sees

The collector took 1% of the step or more while the job was watched. On a device it counts only as
far as the device was idle, waiting for launches.

## Why it matters

The cyclic collector starts after a number of new containers, whatever runs at that moment. A full
collection looks at each object that torch and the other libraries have made, some hundred thousand:
tens of milliseconds in which nothing is launched; of several ranks all wait for the one that
collects.

## Cure

`gc.freeze()` after the imports and a collection every N steps, or the boost gc-pause. The gain:
four fifths of the time; the young generations are still collected.

## References

- https://docs.python.org/3/library/gc.html
- https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST003", severity=Severity.WARNING, since="0.2.0")
SPARED = 0.8
EXPLICIT = "gc.collect"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    watched = profile.seen
    if watched is None or watched.gc_s <= 0:
        return
    spent, step = watched.gc_s * 1000, profile.anatomy.step_ms
    idle = profile.anatomy.part(Kind.WAIT_HOST, Kind.WAIT_OTHER)
    lost = min(spent, idle) if savings.accelerated(profile) else spent
    saves = savings.within(profile, SPARED * lost)
    if not savings.worth(profile, saves):
        return
    explicit = next((call for call in watched.calls if call.name == EXPLICIT), None)
    share = units.share(min(spent / step, 1.0))
    yield Diagnosis(
        title=f"{'gc.collect()' if explicit else 'Python'} collects garbage, {share} of the step",
        evidence=f"{watched.gc_runs:,.2f} collections and {units.milliseconds(spent)} a step",
        cure=Cure(
            "Remove the call from the loop, or make it less often: every 500 steps."
            if explicit
            else "Collect between steps: freeze what the imports made, collect every 500 steps.",
            savings.lines(explicit.where, "gc.collect()")
            if explicit
            else savings.lines(
                "before the loop",
                "",
                "gc.freeze(); gc.set_threshold(100_000, 50, 1000)",
                "# in the loop",
                "if step % 500 == 0:",
                "    gc.collect()",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=explicit.where if explicit else None,
        boost=None if explicit else savings.boost(profile, "gc-pause"),
        saves_ms=saves,
        reason=f"{units.share(SPARED)} of the {units.milliseconds(lost)} a step in which "
        "the collector runs and nothing else does",
    )
