"""The script binds the process to some of the machine's cores, and the others stay idle.

## What it sees

Training on a CPU: the process may use fewer cores than the machine has, the script itself calls
`os.sched_setaffinity` (or psutil's `cpu_affinity`), and the cores that are left are busy.

## Why it matters

The threads share the cores that are left; operators run nearly in proportion to the cores.

## Cure

Remove the call, or leave all cores that nothing else needs. The gain: seven tenths of that of
perfect sharing of the operators among all physical cores.

## References

- https://docs.python.org/3/library/os.html#os.sched_setaffinity
- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, WAITS
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST015", severity=Severity.WARNING, since="0.2.0", hides=("HOST005",))
REACHED = 0.7
BUSY = 0.6
"""Utilisation of the remaining cores from which they limit the step."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    cores = profile.seen.cores if profile.seen is not None else None
    busy = loading.cores_busy(profile)
    if cores is None or cores.affinity_where is None or savings.accelerated(profile):
        return
    if cores.cores >= cores.machine or busy is None or busy < BUSY * cores.cores:
        return
    if cores.quota is not None and cores.quota <= cores.cores:
        return  # the quota would be the limit
    computing_ms = profile.anatomy.step_ms - profile.anatomy.part(*HOST_PARTS, *WAITS)
    saves = savings.within(profile, REACHED * computing_ms * (1 - cores.cores / cores.machine))
    if not savings.worth(profile, saves):
        return
    left = units.count(cores.cores, "core")
    yield Diagnosis(
        title=f"the script binds the process to {left} of {cores.machine}",
        evidence=f"{left} of {cores.machine} may be used, {busy:.1f} busy; operators take "
        f"{units.milliseconds(computing_ms)} of {units.milliseconds(profile.anatomy.step_ms)}",
        cure=Cure(
            "Remove the call that binds the process, or leave it all cores that are free.",
            savings.lines(cores.affinity_where, "os.sched_setaffinity(0, {...})"),
        ),
        severity=savings.severity(profile, saves),
        where=cores.affinity_where,
        saves_ms=saves,
        reason=f"{units.share(REACHED)} of the perfect sharing of "
        f"{units.milliseconds(computing_ms)} among {cores.machine} cores",
    )
