"""Shared by the checks of jobs: what a cure saves, the boost that applies it, lines to change."""

from __future__ import annotations

import math

from flatout.knowledge import boosts
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Place, Profile

LEAST = 0.01
"""Share of the step below which nothing is reported."""
NOTED = 0.03
"""Share of the step below which it is only a note."""


def within(profile: Profile, ms: float) -> float:
    """`ms`, limited to between 0 and the whole step."""
    step = profile.anatomy.step_ms
    return min(max(ms, 0.0), step) if math.isfinite(ms) and step > 0 else 0.0


def beside(profile: Profile, ms: float) -> float:
    """The saving in the measured (median) step that equals `ms` a step outside it.

    For work once an epoch, spread over its steps, the gain is (step + ms) / step.
    """
    step = profile.anatomy.step_ms
    return within(profile, step * ms / (step + ms)) if ms > 0 and step > 0 else 0.0


def worth(profile: Profile, ms: float) -> bool:
    """Whether saving `ms` of a step is worth reporting."""
    step = profile.anatomy.step_ms
    return step > 0 and math.isfinite(ms) and ms >= LEAST * step


def severity(profile: Profile, ms: float) -> Severity:
    """A warning from 3% of the step, else a note."""
    return Severity.WARNING if ms >= NOTED * profile.anatomy.step_ms else Severity.NOTE


def accelerated(profile: Profile) -> bool:
    """Whether it trains on a device other than the CPU."""
    return profile.anatomy.device != "cpu"


def boost(profile: Profile, *ids: str) -> str | None:
    """The first of these boosts that applies to this job, or None if none or the job is unknown."""
    if profile.job is None:
        return None
    return next((name for name in ids if boosts.get(name).applies_somehow(profile.job)), None)


def lines(where: Place | str | None, before: str, *after: str) -> tuple[str, ...]:
    """The lines to change: where, the old line (-) and the new ones (+)."""
    head = (f"# {where}",) if where is not None else ()
    old = (f"- {before}",) if before else ()
    return (*head, *old, *(f"+ {line}" for line in after))
