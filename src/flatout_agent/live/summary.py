"""Where a live tuning stands, for the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout_agent import wire
from flatout_agent.live.session import Session


@dataclass
class Spent:
    """What the units took while boosts were tried, all that the tuning did in them included.

    Those with evaluation, saving or a new epoch in them are left out: they say nothing.
    """

    units: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, written_s: float) -> None:
        """One unit; `written_s`: what it takes as written, NaN as long as that is not known."""
        if math.isfinite(written_s):
            self.units += 1
            self.seconds += seconds

    def waited(self, seconds: float, written_s: float) -> None:
        """For an accelerator, between two units: it is their work that was waited for."""
        if math.isfinite(written_s):
            self.seconds += seconds


def summarise(
    session: Session,
    spent: Spent,
    steps_since_settled: int,
    samples_per_s: float | None,
    by_micro_step: bool,
) -> wire.LiveSummary:
    """The record. Step times are those of units: steps, or micro-steps where those are measured."""
    state, machinery = session.state, session.machinery
    written_s, now_s = state.written_s, state.written_s / state.gain
    measured = math.isfinite(written_s)
    saved_s = 0.0
    if measured:
        saved_s = spent.units * written_s - spent.seconds
        saved_s += steps_since_settled * machinery.units_per_step() * (written_s - now_s)
    together = state.together
    yardstick = together.yardstick if together is not None else None
    return wire.LiveSummary(
        kept=tuple(state.on),
        settled=state.settled,
        steps=machinery.steps(),
        written_ms=1000 * written_s if measured else None,
        now_ms=1000 * now_s if measured else None,
        noise=state.noise,
        noise_pairs=state.pair_noise.freedom + 1 if state.pair_noise.freedom else 0,
        saved_s=saved_s,
        lost_s=session.budget.lost_s,
        lost_late_s=session.budget.lost_late_s,
        samples_per_s=samples_per_s,
        micro_steps=by_micro_step,
        guard=together.summary if together is not None else "",
        guard_passed=together.passed if together is not None else None,
        gradient_error=together.error if together is not None else None,
        batch_noise=yardstick.batch_noise if yardstick is not None else None,
    )
