"""The number of steps in each phase of a profile: as many as needed, or shares of a short run."""

from __future__ import annotations

from dataclasses import dataclass

from flatout_agent import wire


@dataclass(frozen=True)
class PhaseSteps:
    """The steps of the phases; each also has a time limit."""

    warmup_least: int = 2
    warmup_most: int = 30
    """Steps after which unstable times are accepted."""
    window_least: int = 8
    """Undisturbed steps."""
    window_most: int = 20
    sample_least: int = 4
    """Steps whose stacks are sampled."""
    sample_most: int = 60
    record: int = 6
    """Steps recorded for their times, after one that is not."""
    detail: int = 2
    """Steps recorded with stacks, shapes and memory, for lines and not for times, after one that is
    not."""


FULL = PhaseSteps()
"""The phases of a run that is long enough."""


def phase_steps(orders: wire.ProfileOrders) -> PhaseSteps:
    """The phases for these orders; if the whole run is known to be short, its steps are divided."""
    total = orders.known_steps
    if total is None or total >= wire.SHORT_RUN:
        return PhaseSteps(record=orders.steps)
    detail = FULL.detail if total >= 30 else 1
    record = min(orders.steps, max(1, total // 6))
    # The first step, and one before each recording, are left out; two more count operations.
    rest = max(3, total - detail - record - 3 - (2 if total >= 15 else 0))
    third = min(rest // 3, FULL.window_most)
    return PhaseSteps(
        warmup_least=1,
        warmup_most=max(1, third),
        window_least=max(1, third),
        window_most=max(1, third),
        sample_least=max(1, min(third, FULL.sample_most)),
        sample_most=max(1, min(rest - 2 * third, FULL.sample_most)),
        record=record,
        detail=detail,
    )
