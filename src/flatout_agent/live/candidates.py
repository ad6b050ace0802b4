"""The boosts worth trying in this program, likeliest gain first, and why the others are not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flatout_agent import wire
from flatout_agent.boost import Boost, Switch
from flatout_agent.boosts import NO_SHARE, BoostModule, load, names, working_share
from flatout_agent.live.records import RECORDS, Record

LEAST_PROMISE = 1.004
"""If it is known where a step's time goes, a boost that promises less gets no turn."""

USUAL = Record(0, 0.5, 0.05)
"""The record of a boost that was never tried on this kind of device."""
MUCH, HELPS = 1.3, 0.5
"""A boost that promises so much helps in half of the programs, whatever its record."""


@dataclass(frozen=True)
class Candidate:
    """One boost with one choice of its parameters."""

    id: str
    params: wire.Params
    boost: Boost
    promise: float
    """Likely speed-up according to the boost's own rule."""
    record: Record = USUAL
    variant: int = 0
    """0: the first choice of parameters that applies; variants come after all other boosts."""
    again: bool = False

    @property
    def order(self) -> wire.BoostOrder:
        """The form that the booster takes."""
        return wire.BoostOrder(self.id, self.params)

    @property
    def likely_gain(self) -> float:
        """Log of the speed-up that trying it brings on average.

        The record is of programs in which most boosts promised little.
        """
        helped = max(self.record.helped, HELPS if self.promise >= MUCH else 0.0)
        return helped * math.log(max(1.001, self.promise))

    @property
    def likely_harm(self) -> float:
        """Log of the speed-up that taking it out once brings on average.

        A boost that promises much seldom hurts.
        """
        wrong = 1 - self.record.helped
        return wrong * self.record.harm / (1 + 10 * max(0.0, self.promise - 1))

    def excludes(self, other: Candidate) -> bool:
        """Whether both cannot be on."""
        return self.id in other.boost.conflicts or other.id in self.boost.conflicts


@dataclass(frozen=True)
class Refusal:
    """Why a boost gets no turn now."""

    reason: str
    why: wire.WhyUntried | None = None
    """The order, or None if it does not apply to this program or not beside what is on."""


def record_of(boost: str, device: str) -> Record:
    """How this boost has fared on this kind of device: cpu, cuda, xpu or mps."""
    return RECORDS.get(device, RECORDS["cuda"]).get(boost, USUAL)


def highest_risk(candidates: Iterable[Candidate]) -> str:
    """The highest risk among these boosts; "exact" if there are none."""
    risks = ("exact", "rounding")
    return max(
        (candidate.boost.risk.value for candidate in candidates), key=risks.index, default="exact"
    )


NEEDS_START = "can only be switched when the program starts"


def promise_of(group: Iterable[Candidate]) -> float:
    """What they promise together."""
    return math.prod(candidate.promise for candidate in group)


def candidates(
    facts: wire.JobFacts, allowed: Collection[str]
) -> tuple[list[Candidate], list[wire.Decided]]:
    """(candidates to try, in order; boosts that do not apply to this job or a running program)."""
    eligible: list[Candidate] = []
    declined: list[wire.Decided] = []
    for boost_id in names():
        if boost_id not in allowed:
            continue
        variants, refusal = _variants(boost_id, load(boost_id), facts)
        eligible += variants
        if not variants:
            refusal = refusal or Refusal("does not apply")
            row = wire.Decided(boost_id, "declined", refusal.reason, why_untried=refusal.why)
            declined.append(row)
    eligible.sort(
        key=lambda candidate: (
            candidate.variant > 0,
            candidate.boost.compiles,
            -candidate.promise,
            candidate.id,
        )
    )
    return eligible, declined


def _variants(
    boost_id: str, module: BoostModule, facts: wire.JobFacts
) -> tuple[list[Candidate], Refusal | None]:
    """(the choices of parameters that apply, why the first of the others does not)."""
    boost = module.BOOST
    variants: list[Candidate] = []
    first_refusal: Refusal | None = None
    for values in itertools.product(*boost.params.values()):
        params = dict(zip(boost.params, values, strict=True))
        environment = getattr(module, "environment", None)
        refusal: Refusal | None = None
        if reason := module.applies(facts, params):
            refusal = Refusal(reason)
        elif boost.switch is Switch.START or (environment and environment(facts, params)):
            refusal = Refusal(NEEDS_START, "needs_start")
        promise = module.promise(facts, params) if refusal is None else 1.0
        useless = refusal is None and promise < LEAST_PROMISE
        if useless and facts.shares:
            refusal = Refusal("what it makes faster takes next to nothing of the step")
        elif useless and facts.idle_share and working_share(facts) < NO_SHARE:
            refusal = Refusal("the device waits for the program: faster kernels would gain nothing")
        if refusal is None:
            record = record_of(boost_id, facts.device)
            variants.append(Candidate(boost_id, params, boost, promise, record, len(variants)))
        first_refusal = first_refusal or refusal
    return variants, first_refusal
