"""What the checks of jobs share: what a cure is worth, which boost does it, the lines to change."""

from __future__ import annotations

import math

from flatout.knowledge import boosts
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Place, Profile

LEAST = 0.01
"""Share of the step below which nothing is said."""
NOTED = 0.03
"""Share of the step below which it is a note only."""


def within(profile: Profile, ms: float) -> float:
    """`ms`, between nothing and the whole step."""
    step = profile.anatomy.step_ms
    return min(max(ms, 0.0), step) if math.isfinite(ms) and step > 0 else 0.0


def beside(profile: Profile, ms: float) -> float:
    """What `ms` a step that are no part of the measured (median) step are worth in its terms.

    Work once an epoch, spread over its steps: (step + ms) / step is the gain.
    """
    step = profile.anatomy.step_ms
    return within(profile, step * ms / (step + ms)) if ms > 0 and step > 0 else 0.0


def worth(profile: Profile, ms: float) -> bool:
    """Saving `ms` of a step is worth a word."""
    step = profile.anatomy.step_ms
    return step > 0 and math.isfinite(ms) and ms >= LEAST * step


def severity(profile: Profile, ms: float) -> Severity:
    """A warning from 3% of the step on; below, a note."""
    return Severity.WARNING if ms >= NOTED * profile.anatomy.step_ms else Severity.NOTE


def accelerated(profile: Profile) -> bool:
    """It trains on a device beside the CPU."""
    return profile.anatomy.device != "cpu"


def boost(profile: Profile, *ids: str) -> str | None:
    """The first of these boosts that applies to this job; None: none, or the job is not known."""
    if profile.job is None:
        return None
    return next((name for name in ids if boosts.get(name).applies_somehow(profile.job)), None)


def lines(where: Place | str | None, before: str, *after: str) -> tuple[str, ...]:
    """The lines to change: where, what stands there (-) and what should (+)."""
    head = (f"# {where}",) if where is not None else ()
    old = (f"- {before}",) if before else ()
    return (*head, *old, *(f"+ {line}" for line in after))
