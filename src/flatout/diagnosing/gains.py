"""Gains: how much faster a saving makes the step, given its next limit, and how sure that is."""

from __future__ import annotations

import re

from flatout.diagnosing.checks import Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Gain
from flatout.nouns.profile import Profile

LEAST_LEFT = 0.05
"""The least share of a step that remains, whatever a cure saves."""
MEASURED, MODELLED = 0.10, 0.40
"""The share by which a measured and a modelled saving may be off."""
LEAST_SPREAD = 0.02
"""The least spread of any prediction, as a share of the step."""
UNCERTAINTY = {
    "COMM": MODELLED,
    "COPY": MEASURED,
    "DATA": MEASURED,
    "HOST": MODELLED,
    "HOST003": MEASURED,
    "HOST007": MEASURED,
    "KERN": MODELLED,
    "LOOP": MEASURED,
    "MEM": MODELLED,
    "SYNC": MEASURED,
}
"""By check, else by family, for checks that do not say themselves."""
OF_HOST = ("DATA", "HOST", "SYNC")
"""Families that save host time; the device's own work remains."""
BETWEEN_STEPS = ("DATA004",)
"""Checks of these families whose saving is outside the steps."""
OF_DEVICE = ("COMM", "COPY", "KERN", "MEM")
"""Families that save device time; the host's own work remains."""
HOST_UNRECORDED = 0.75
"""The least share of the host's recorded time that remains when nothing is recorded."""
BINDS = 1.01
"""A bound is mentioned if it makes the step this many times as long."""


def gain(code: str, diagnosis: Diagnosis, profile: Profile) -> Gain | None:
    """What this diagnosis of the check `code` is predicted to gain, or None if unknown."""
    step, saves = profile.anatomy.step_ms, diagnosis.saves_ms
    if saves is None or not step:
        return None
    family = re.sub(r"\d+", "", code)
    least, most, name = (0.0, 0.0, "")
    if code not in BETWEEN_STEPS:
        least, most, name = _bound(family, profile, diagnosis.adds_host_ms)
    uncertainty = diagnosis.uncertainty
    if uncertainty is None:
        uncertainty = UNCERTAINTY.get(code, UNCERTAINTY.get(family, MODELLED))
    spread = max(saves * uncertainty, LEAST_SPREAD * step)
    largest = saves + spread
    if diagnosis.most_ms is not None:
        largest = max(saves, min(largest, diagnosis.most_ms))
    left = max(step - saves, LEAST_LEFT * step)
    reason = diagnosis.reason
    if least > BINDS * left:
        reason += f"; {units.milliseconds(least)} remain: {name}"
    return Gain(
        ratio=_ratio(step, saves, least),
        reason=reason,
        low=_ratio(step, saves - spread, most),
        high=_ratio(step, largest, least),
    )


def _ratio(step_ms: float, saves_ms: float, remains_ms: float) -> float:
    """Step now / step afterwards, of which at least `remains_ms` is left; never below 1."""
    possible_ms = max(0.0, min(saves_ms, step_ms - remains_ms))
    return amdahl.speedup(step_ms, possible_ms, least=LEAST_LEFT)


def _bound(family: str, profile: Profile, adds_host_ms: float) -> tuple[float, float, str]:
    """(least, most ms of a step that remain whatever is saved; what they are)."""
    anatomy = profile.anatomy
    if savings.accelerated(profile):
        if family in OF_HOST:
            busy = anatomy.busy_ms + anatomy.part(Kind.UNRECORDED)
            return busy, busy, "the device's own work"
        if family in OF_DEVICE and anatomy.host_ms is not None:
            host_ms = anatomy.host_ms + adds_host_ms
            return HOST_UNRECORDED * host_ms, host_ms, "the host's own work"
        return 0.0, 0.0, ""
    facts, work = loading.loader(profile), loading.prepared_ms(profile)
    if family == "DATA" or facts is None or facts.num_workers < 1 or work is None:
        return 0.0, 0.0, ""
    delivered = min(work / facts.num_workers, anatomy.step_ms)
    return delivered, delivered, "the loader's workers"
