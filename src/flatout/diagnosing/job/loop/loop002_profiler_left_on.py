"""A profiler of the script's own is running while the job trains.

## What it sees

`torch.profiler.profile` (or `emit_nvtx`, `cProfile`) that the script itself keeps running.

## Why it matters

Every operator is recorded, with shapes and stacks it costs tens of microseconds each, and the
events pile up in memory until the profiler stops.

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
from flatout.diagnosing.job.device_time import Saving
from flatout.nouns import units
from flatout.nouns.anatomy import CALLING, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP002", severity=Severity.WARNING, since="0.2.0")
EVENT_MS = 0.003
"""Cautious cost of recording one operator on the host."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the job."""
    seen = profile.seen
    if seen is None or not seen.profiler:
        return
    saving, evidence = _measured(profile) or _estimated(profile)
    yield Diagnosis(
        title="a profiler of the script's own is running",
        evidence=evidence,
        cure=Cure(
            "Record some steps and stop.",
            savings.lines(
                seen.profiler_where,
                "with torch.profiler.profile() as profiler:",
                "schedule = torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1)",
                "with torch.profiler.profile(schedule=schedule) as profiler:",
                "    ...  # and profiler.step() after each step",
            ),
        ),
        where=seen.profiler_where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _measured(profile: Profile) -> tuple[Saving, str] | None:
    """The saving and the steps with and without it, or None if not measured."""
    seen, step_ms = profile.seen, profile.anatomy.step_ms
    if seen is None or seen.profiler_step_s is None:
        return None
    with_ms = 1000 * seen.profiler_step_s
    measured = f"a step takes {units.milliseconds(with_ms)} with it and "
    measured += f"{units.milliseconds(step_ms)} without it"
    saves = savings.beside(profile, with_ms - step_ms)
    return device_time.of_step(profile, saves, f"measured in two runs: {measured}"), measured


def _estimated(profile: Profile) -> tuple[Saving, str]:
    """The saving by the operators that it records."""
    events = sum(operator.calls for operator in profile.operators)
    # On an accelerator only its waiting for the host counts.
    most = profile.anatomy.part(*CALLING, Kind.WAIT_HOST)
    saved = min(events * EVENT_MS, most)
    saving = device_time.of_step(
        profile,
        saved,
        f"{events:,.0f} operators a step at {EVENT_MS * 1000:.0f} us each (a cautious constant): "
        f"{units.milliseconds(saved)}, at most what Python and launching take",
    )
    return saving, f"torch's profiler was on already; {events:,.0f} operators a step are recorded"
