"""What makes evaluation faster is measured there: a pass before, a pass after."""

from __future__ import annotations

import statistics
from collections.abc import Generator

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.budget import Budget
from flatout_agent.live.measure import Measure
from flatout_agent.live.state import Tick

PASSES = 2
"""Passes needed: the first one under a boost may only be watched."""
WAIT_S = 20.0
"""How long a throw-away run waits for them."""


def compare(
    measure: Measure, budget: Budget, order: wire.BoostOrder
) -> Generator[None, Tick, decide.Answer | None]:
    """Evaluation beside all that is kept, without and with this boost; None: there was none."""
    machinery, on = measure.machinery, measure.state.on
    measure.switch(on)
    before = machinery.evaluations()
    began = budget.now()
    if before:
        measure.switch([*on, order])
    while before and len(machinery.evaluations()) < len(before) + PASSES:
        if budget.throw_away and budget.now() - began > WAIT_S:
            break
        yield
    after = machinery.evaluations()[len(before) + 1 :]
    if not before or not after:
        return None
    gain = statistics.median(before) / statistics.median(after)
    verdict: decide.PairVerdict = "faster" if gain > 1 + decide.MATTERS else "same"
    return decide.Answer(verdict, gain, gain, gain, len(after))
