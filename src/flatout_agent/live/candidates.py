"""What is worth a try in this program, the likeliest gain first, and what is not, and why."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flatout_agent import wire
from flatout_agent.boost import Boost, Switch
from flatout_agent.boosts import BoostModule, load, names

LEAST_PROMISE = 1.004
"""Where the step's time is known, a boost that promises less gets no turn."""


@dataclass(frozen=True)
class Candidate:
    """One boost with one choice of its parameters."""

    id: str
    params: wire.Params
    boost: Boost
    promise: float
    """Likely speed-up, by the boost's own rule."""
    variant: int = 0
    """0: the first choice of parameters that applies; variants come after all other boosts."""
    again: bool = False

    @property
    def order(self) -> wire.BoostOrder:
        """As the booster takes it."""
        return wire.BoostOrder(self.id, self.params)


@dataclass(frozen=True)
class Refusal:
    """Why a boost gets no turn now."""

    reason: str
    why: wire.WhyUntried | None = None
    """None: it does not apply to this program, or not beside what is on."""


def highest_risk(items: Iterable[Candidate]) -> str:
    """The highest risk among these boosts; "exact" without any."""
    risks = ("exact", "rounding", "semantics")
    return max((item.boost.risk.value for item in items), key=risks.index, default="exact")


def candidates(
    facts: wire.JobFacts, allowed: Collection[str], known: Iterable[str] | None = None
) -> tuple[list[Candidate], list[wire.Decided]]:
    """(what to try, in order; what does not apply to this job or not to a running program)."""
    found: list[Candidate] = []
    declined: list[wire.Decided] = []
    for boost_id in known if known is not None else names():
        if boost_id not in allowed:
            continue
        variants, refusal = _variants(boost_id, load(boost_id), facts)
        found += variants
        if not variants:
            refusal = refusal or Refusal("does not apply")
            row = wire.Decided(boost_id, "declined", refusal.reason, why_untried=refusal.why)
            declined.append(row)
    found.sort(key=lambda item: (item.variant > 0, item.boost.compiles, -item.promise, item.id))
    return found, declined


def _variants(
    boost_id: str, module: BoostModule, facts: wire.JobFacts
) -> tuple[list[Candidate], Refusal | None]:
    """(the choices of parameters that apply, why the first of the others does not)."""
    boost = module.BOOST
    found: list[Candidate] = []
    first: Refusal | None = None
    for values in itertools.product(*boost.params.values()):
        params = dict(zip(boost.params, values, strict=True))
        refusal = _refusal(module, facts, params)
        promise = module.promise(facts, params) if refusal is None else 1.0
        if refusal is None and facts.shares and promise < LEAST_PROMISE:
            refusal = Refusal("what it makes faster takes next to nothing of the step")
        if refusal is None:
            found.append(Candidate(boost_id, params, boost, promise, len(found)))
        first = first or refusal
    return found, first


NEEDS_START = "can only be switched when the program starts"


def _refusal(module: BoostModule, facts: wire.JobFacts, params: wire.Params) -> Refusal | None:
    reason = module.applies(facts, params)
    if reason:
        return Refusal(reason)
    environment = getattr(module, "environment", None)
    if module.BOOST.switch is Switch.START or (environment and environment(facts, params)):
        return Refusal(NEEDS_START, "needs_start")
    return None


def retries(dropped: Iterable[tuple[Candidate, int]], kept: list[str]) -> list[Candidate]:
    """Of those dropped when so many were kept: what a boost kept since may have made worth it."""
    return [
        Candidate(item.id, item.params, item.boost, item.promise, item.variant, again=True)
        for item, before in dropped
        if set(kept[before:]) & set(item.boost.retry_after)
    ]
