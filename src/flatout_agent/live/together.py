"""Boosts beside each other: small ones as one, each worth its place, errors that add up."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from flatout_agent import wire
from flatout_agent.live import paired
from flatout_agent.live.blocks import Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.costs import Costs
from flatout_agent.live.machinery import Machinery, State, Story
from flatout_agent.live.pairs import Pairs

FEW_PAIRS = 8
"""For the last look at what is kept: little hangs on it."""
GROUP_PAIRS = 16
"""For boosts that were too small to be seen alone."""


class Tuning(Protocol):
    """What these need of the tuning: `session.Session` is one."""

    machinery: Machinery
    budget: Budget
    state: State
    pairs: Pairs
    costs: Costs

    def compare(
        self,
        item: Candidate,
        base: list[wire.BoostOrder],
        trial: list[wire.BoostOrder],
        most: int,
    ) -> Generator[None, Tick, paired.Answer]: ...

    def tell(
        self,
        item: Candidate,
        kind: wire.LiveVerdict,
        reason: str,
        answer: paired.Answer | None = None,
    ) -> str: ...


def try_small_ones(session: Tuning, small: Sequence[Candidate]) -> Story:
    """Exact boosts that may each have gained a little, on together: the sum may be beyond doubt."""
    state, pairs = session.state, session.pairs
    group: list[Candidate] = []
    for item in small:
        if not any(_exclude(item, other) for other in (*state.kept, *group)):
            group.append(item)
    if len(group) < 2 or session.budget.over:
        return
    cost_s = sum(map(session.costs.least_s, group))
    if not pairs.agreed(session.budget.ready(cost_s, 0.0)):
        return
    trial = [*state.on, *(item.order for item in group)]
    most = min(GROUP_PAIRS, session.costs.most_pairs(group[0], ()))
    answer = yield from session.compare(group[0], state.on, trial, most)
    if answer.verdict == "faster":
        for item in group:
            others = ", ".join(other.id for other in group if other is not item)
            state.kept.append(item)
            state.gains[item.id] = answer.gain ** (1 / len(group))
            session.tell(item, "kept", f"{answer.gain:.2f}x together with {others}")
        state.now_s /= answer.gain
    pairs.switch(state.on)


def _exclude(item: Candidate, other: Candidate) -> bool:
    """Whether both cannot be on, or one leaves nothing for the other."""
    return (
        item.id == other.id
        or item.id in other.boost.conflicts
        or other.id in item.boost.conflicts
        or other.id in item.boost.covered_by
    )


def take_each_out(session: Tuning) -> Story:
    """Where several are kept, each must still earn its place beside the others."""
    state, pairs = session.state, session.pairs
    if len(state.kept) < 2 or session.budget.over:
        return
    for item in list(state.kept[:-1]):  # the last was measured beside all others
        if len(state.kept) < 2:
            return
        cost_s = session.costs.least_s(item)
        if not pairs.agreed(session.budget.ready(cost_s, 0.0) and not session.budget.over):
            return
        others = [order for order in state.on if order.id != item.id]
        answer = yield from session.compare(item, others, state.on, FEW_PAIRS)
        if answer.verdict == "slower" or (answer.verdict == "same" and answer.gain < 0.99):
            state.kept.remove(item)
            state.gains.pop(item.id, None)
            state.now_s *= answer.gain
            pairs.switch(state.on)
            reason = f"beside the others it is {1 / answer.gain:.2f}x slower"
            session.tell(item, "dropped", reason, answer)


def check(session: Tuning) -> Story:
    """All that is kept against the program as written: errors may add up."""
    state = session.state
    while state.kept:
        session.pairs.switch(state.on)
        verdict = yield from session.machinery.check_together(state.kept)
        state.together = verdict
        if verdict.passed or not session.pairs.agreed(verdict.error is not None):
            return
        risky = [kept for kept in state.kept if kept.boost.risk.value != "exact"]
        item = (risky or state.kept)[-1]
        state.kept.remove(item)
        state.now_s *= state.gains.pop(item.id, 1.0)
        session.tell(item, "dropped", f"together with the others: {verdict.summary}")
