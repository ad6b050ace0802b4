"""A profiler of the script's own is running while the job trains.

## What it sees

`torch.profiler.profile` (or `emit_nvtx`, `cProfile`) that the script itself keeps running.

## Why it matters

Every operator is recorded, with shapes and stacks it costs tens of microseconds each, and the
events pile up in memory until the profiler stops.

## Evidence

That a profiler was running before flatout recorded, and how many operators a step has.

## Cure

Record some steps and stop: `schedule=torch.profiler.schedule(wait=10, warmup=2, active=3,
repeat=1)`.

## References

- https://docs.pytorch.org/docs/stable/profiler.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.nouns import units
from flatout.nouns.anatomy import CALLING, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP002", severity=Severity.WARNING, since="0.2.0")
EVENT_MS = 0.003
"""Cautious: what recording one operator costs on the host."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the job."""
    if profile.seen is None or not profile.seen.profiler:
        return
    events = sum(operator.calls for operator in profile.operators)
    # On an accelerator only what it waits for the host counts.
    most = profile.anatomy.part(*CALLING, Kind.WAIT_HOST)
    saved = min(events * EVENT_MS, most)
    saving = device_time.of_step(
        profile,
        saved,
        f"{events:,.0f} operators a step at {EVENT_MS * 1000:.0f} us each (a cautious constant): "
        f"{units.milliseconds(saved)}, at most what Python and launching take",
    )
    yield Diagnosis(
        title="a profiler of the script's own is running",
        evidence=f"torch's profiler was on already; {events:,.0f} operators a step are recorded",
        cure=Cure(
            "Record some steps and stop.",
            savings.lines(
                None,
                "with torch.profiler.profile() as profiler:",
                "schedule = torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1)",
                "with torch.profiler.profile(schedule=schedule) as profiler:",
            ),
        ),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
