"""Which boosts the user allows, and the row of one that gets no trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.knowledge import boosts as known
from flatout.nouns.errors import UserError
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Trial, Verdict, WhyUntried


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
