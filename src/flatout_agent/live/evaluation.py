"""What makes evaluation faster is measured there: a pass before, a pass after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator

from flatout_agent import wire
from flatout_agent.live import paired
from flatout_agent.live.blocks import Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.pairs import Pairs

PASSES = 2
"""Passes needed: the first one under a boost may only be watched."""
WAIT_S = 20.0
"""How long a throw-away run waits for them."""


def compare(
    pairs: Pairs, budget: Budget, order: wire.BoostOrder
) -> Generator[None, Tick, paired.Answer | None]:
    """Evaluation beside all that is kept, without and with this boost; None: there was none."""
    on = pairs.state.on
    pairs.switch(on)
    before = pairs.machinery.evaluations()
    began = time.perf_counter()
    if before:
        pairs.switch([*on, order])
    while pairs.agreed(bool(before) and _wait(pairs, budget, len(before), began)):
        yield
    after = pairs.machinery.evaluations()[len(before) + 1 :]
    if not before or not after:
        return None
    gain = statistics.median(before) / statistics.median(after)
    verdict: paired.PairVerdict = "faster" if gain > 1 + paired.MATTERS else "same"
    return paired.Answer(verdict, gain, gain, gain, len(after))


def _wait(pairs: Pairs, budget: Budget, before: int, began: float) -> bool:
    waited_s = time.perf_counter() - began if budget.throw_away else 0.0
    return len(pairs.machinery.evaluations()) < before + PASSES and waited_s < WAIT_S
