"""What is worth a trial on this job: boosts with parameters, the likeliest gain first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flatout.knowledge import boosts as known
from flatout.nouns.errors import UserError
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Trial, Verdict, WhyUntried
from flatout_agent import wire


@dataclass(frozen=True)
class Allowance:
    """What the user allows."""

    exact: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.only, *self.skip):
            if name not in known.ids():
                suggestion = " or ".join(known.nearest(name)) or ", ".join(known.ids())
                raise UserError(f"there is no boost {name!r}", f"did you mean {suggestion}?")
        contradictions = set(self.only) & set(self.skip)
        if contradictions:
            name = sorted(contradictions)[0]
            raise UserError(f"{name} is named by --only and by --skip", "name it once")

    def refuses(self, boost: known.KnownBoost) -> str | None:
        """Why this boost must not be tried, or None if it may be."""
        if self.only and boost.id not in self.only:
            return "not named by --only"
        if boost.id in self.skip:
            return "left out by --skip"
        if self.exact and boost.risk != "exact":
            return "changes rounding: left out by --exact"
        return None


@dataclass
class ApplicableBoost:
    """A boost that applies, with the parameters worth trying."""

    boost: known.KnownBoost
    variants: list[PlannedBoost]
    promise: float
    """Expected speed-up, for the order: from the profile, else from the boost's own rule."""
    retried: bool = field(default=False)


def candidates(
    facts: wire.JobFacts, choice: Allowance, predicted: Mapping[str, float] | None = None
) -> tuple[list[ApplicableBoost], list[Trial]]:
    """(boosts to try, in order; skipped ones, with the reason).

    `predicted`: speed-up of each boost that a finding of the program's profile asks for. Boosts
    that compile and that no finding asks for come last, since they take longest.
    """
    applicable: list[ApplicableBoost] = []
    skipped: list[Trial] = []
    for boost in known.every():
        reason = choice.refuses(boost)
        if reason is None:
            variants, reason = _variants(boost, facts)
            if variants:
                rule = max(boost.promise(facts, candidate.params) for candidate in variants)
                promise = (predicted or {}).get(boost.id, rule)
                applicable.append(ApplicableBoost(boost, variants, promise))
                continue
        skipped.append(skip((), boost.id, reason or "does not apply"))

    def order(candidate: ApplicableBoost) -> tuple[bool, float, str]:
        boost = candidate.boost
        late = predicted is not None and boost.compiles and boost.id not in predicted
        return late, -candidate.promise, boost.id

    return sorted(applicable, key=order), skipped


def skip(
    on: Sequence[PlannedBoost], boost: str, reason: str, why: WhyUntried | None = None
) -> Trial:
    """The row of a boost that gets no trial."""
    return Trial(
        boosts=(*(other.id for other in on), boost),
        tried=boost,
        verdict=Verdict.SKIPPED,
        reason=reason,
        why_untried=why,
    )


def _variants(
    boost: known.KnownBoost, facts: wire.JobFacts
) -> tuple[list[PlannedBoost], str | None]:
    """Every combination of the parameters that applies; else why the default does not."""
    names = list(boost.params)
    variants: list[PlannedBoost] = []
    reason = None
    for values in itertools.product(*(boost.params[name] for name in names)):
        params = dict(zip(names, values, strict=True))
        refusal = boost.applies(facts, params)
        if refusal is None:
            variants.append(PlannedBoost(boost.id, params, risk=boost.risk.value))
        reason = reason or refusal
    return variants, reason
