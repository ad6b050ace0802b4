"""A tensor leaves the device and comes back in the same step.

## What it sees

A value is copied to the host (`.cpu()`, `.to("cpu")`), and a result computed from it there is
copied back to the device in the same step.

## Why it matters

The copy to the host waits until the device has computed all before it; the device is idle until
the copy back arrives. The work in between on the host would take the device microseconds.

## Evidence

Both lines, how often and how many bytes, and for how long the host waits and the device is idle.

## Cure

Compute it on the device, between the two lines. The gain: both copies where nothing computes
meanwhile, and the idle time after the first one.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
- https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import ReturnSeen

CHECK = Check(code="COPY009", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each pair of lines."""
    seen = flow.of(profile)
    for row in seen.returns if seen is not None else ():
        exposed, idle = _costs(profile, row)
        saves = savings.within(profile, exposed + idle)
        if row.left is None or not savings.worth(profile, saves):
            continue
        yield Diagnosis(
            title="a tensor leaves the device and comes back in the same step",
            evidence=f"to the host at {row.left}, back at {row.back or 'an unknown line'}: "
            f"{row.calls:.3g} times a step, {units.size(row.bytes)}; copies of "
            f"{units.milliseconds(exposed)} while nothing computes, the device idle for "
            f"{units.milliseconds(idle)}",
            cure=Cure(
                "Compute on the device what stands between these lines.",
                savings.lines(row.left, "y = f(x.cpu()).to(device)", "y = f(x)"),
            ),
            severity=savings.severity(profile, saves),
            where=row.left,
            saves_ms=saves,
            reason=f"the copies of {units.milliseconds(exposed)} and "
            f"{units.milliseconds(idle)} in which the device waits go",
        )


def _costs(profile: Profile, row: ReturnSeen) -> tuple[float, float]:
    """Milliseconds of copies that nothing hides, and of the device being idle."""
    lines = (row.left, row.back)
    exposed = sum(copy.exposed_ms for copy in profile.copies if str(copy.where) in lines)
    idle = sum(sync.idle_ms for sync in profile.syncs if str(sync.where) in lines)
    return exposed, idle
