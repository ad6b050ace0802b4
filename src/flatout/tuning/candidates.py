"""Which boosts the user allows and which apply, and the row of one that gets no trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

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


def applicable(facts: wire.JobFacts, choice: Allowance) -> list[tuple[float, PlannedBoost]]:
    """The boosts that apply, each with its promise and the first parameters to try; the likeliest
    gain first.
    """
    found: list[tuple[float, PlannedBoost]] = []
    for boost in known.every():
        if choice.refuses(boost) is not None:
            continue
        every = [dict(zip(boost.params, v, strict=True)) for v in product(*boost.params.values())]
        fitting = [params for params in every if boost.applies(facts, params) is None]
        if fitting:
            promise = max(boost.promise(facts, params) for params in fitting)
            found.append((promise, PlannedBoost(boost.id, fitting[0], risk=boost.risk.value)))
    return sorted(found, key=lambda each: (-each[0], each[1].id))


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
