"""Boosts together: small gains as a group, redundant boosts, errors that add up."""

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
"""For the last check of what is kept: little depends on it."""
GROUP_PAIRS = 16
"""For boosts whose gain was too small to be measured alone."""


class Tuning(Protocol):
    """What these functions need of the tuning: `session.Session` is one."""

    machinery: Machinery
    budget: Budget
    state: State
    pairs: Pairs
    costs: Costs

    def compare(
        self,
        candidate: Candidate,
        base: list[wire.BoostOrder],
        trial: list[wire.BoostOrder],
        most: int,
    ) -> Generator[None, Tick, paired.Answer]: ...

    def tell(
        self,
        candidate: Candidate,
        kind: wire.LiveVerdict,
        reason: str,
        answer: paired.Answer | None = None,
    ) -> str: ...


def try_small_ones(session: Tuning, small: Sequence[Candidate]) -> Story:
    """Switch on together exact boosts with small gains: the sum may be beyond doubt."""
    state, pairs = session.state, session.pairs
    group: list[Candidate] = []
    for candidate in small:
        if not any(_exclude(candidate, other) for other in (*state.kept, *group)):
            group.append(candidate)
    if len(group) < 2 or session.budget.over:
        return
    cost_s = sum(map(session.costs.least_s, group))
    if not pairs.agreed(session.budget.ready(cost_s, 0.0)):
        return
    trial = [*state.on, *(candidate.order for candidate in group)]
    most = min(GROUP_PAIRS, session.costs.most_pairs(group[0], ()))
    answer = yield from session.compare(group[0], state.on, trial, most)
    if answer.verdict == "faster":
        for candidate in group:
            names = ", ".join(other.id for other in group if other is not candidate)
            state.kept.append(candidate)
            state.gains[candidate.id] = answer.gain ** (1 / len(group))
            session.tell(candidate, "kept", f"{answer.gain:.2f}x together with {names}")
        state.now_s /= answer.gain
    pairs.switch(state.on)


def _exclude(candidate: Candidate, other: Candidate) -> bool:
    """Whether both cannot be on, or one leaves nothing for the other."""
    return (
        candidate.id == other.id
        or candidate.id in other.boost.conflicts
        or other.id in candidate.boost.conflicts
        or other.id in candidate.boost.covered_by
    )


def drop_redundant(session: Tuning) -> Story:
    """Where several are kept, each must still earn its place beside the others."""
    state, pairs = session.state, session.pairs
    if len(state.kept) < 2 or session.budget.over:
        return
    for candidate in list(state.kept[:-1]):  # the last was measured beside all others
        if len(state.kept) < 2:
            return
        cost_s = session.costs.least_s(candidate)
        if not pairs.agreed(session.budget.ready(cost_s, 0.0) and not session.budget.over):
            return
        others = [order for order in state.on if order.id != candidate.id]
        answer = yield from session.compare(candidate, others, state.on, FEW_PAIRS)
        if answer.verdict == "slower" or (answer.verdict == "same" and answer.gain < 0.99):
            state.kept.remove(candidate)
            state.gains.pop(candidate.id, None)
            state.now_s *= answer.gain
            pairs.switch(state.on)
            reason = f"beside the others it is {1 / answer.gain:.2f}x slower"
            session.tell(candidate, "dropped", reason, answer)


def check(session: Tuning) -> Story:
    """All that is kept against the program as written: errors may add up."""
    state = session.state
    while state.kept:
        session.pairs.switch(state.on)
        verdict = yield from session.machinery.check_together(state.kept)
        state.together = verdict
        if verdict.passed or not session.pairs.agreed(verdict.error is not None):
            return
        risky = [member for member in state.kept if member.boost.risk.value != "exact"]
        candidate = (risky or state.kept)[-1]
        state.kept.remove(candidate)
        state.now_s *= state.gains.pop(candidate.id, 1.0)
        session.tell(candidate, "dropped", f"together with the others: {verdict.summary}")
