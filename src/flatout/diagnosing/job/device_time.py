"""How much of saved computing time shortens the step."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile

MOST = 0.95
"""The most of a step that a cure is believed to save."""
WAITS_TOLD = 0.05
"""Share of the step from which the device's waiting for others is taken into account."""


@dataclass(frozen=True)
class Saving:
    """Milliseconds of one step, how they were computed, and what they are worth."""

    ms: float
    reason: str
    severity: Severity
    worth: bool
    """Whether it is worth reporting."""


def of_step(profile: Profile, ms: float, reason: str) -> Saving:
    """Milliseconds saved whatever else limits the step."""
    bounded = min(savings.within(profile, ms), MOST * profile.anatomy.step_ms)
    severity, worth = savings.severity(profile, bounded), savings.worth(profile, bounded)
    return Saving(bounded, reason, severity, worth)


def of_device(profile: Profile, ms: float, reason: str) -> Saving:
    """Milliseconds of computing, which count only while nothing else makes the device wait.

    If the host launches or loader workers deliver too slowly, shorter kernels only make the device
    wait longer.
    """
    anatomy = profile.anatomy
    waits = anatomy.part(Kind.WAIT_HOST)
    if profile.job is not None and any(loader.num_workers for loader in profile.job.loaders):
        waits += anatomy.part(Kind.WAIT_DATA)
    busy = anatomy.busy_ms
    if waits <= WAITS_TOLD * anatomy.step_ms or busy <= 0:
        return of_step(profile, ms, reason)
    share = busy / (busy + waits)
    more = (
        f"; {units.share(share)} of that is counted, since the device also waits "
        f"{units.milliseconds(waits)} of each step for the host or the loader"
    )
    return of_step(profile, ms * share, reason + more)
