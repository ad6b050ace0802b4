"""Which verified build is kept: the best for the goal, and among equals the simplest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatout.exporting import timing
from flatout.nouns import units
from flatout.nouns.exported import Goal

SAME = 1.02
"""A gain below this never justifies a less simple build ..."""
UNSURE = 1.03
"""... nor does a gain below this if the interval leaves open which one is faster."""


@dataclass(frozen=True)
class Contender:
    """A verified build, reduced to what the choice needs."""

    id: str
    order: tuple[int, int]
    """A smaller value is simpler."""
    title: str
    cost: float
    """Milliseconds, milliseconds per sample, or bytes: less is better."""
    rounds: tuple[float, ...] = ()
    """The cost in each round, in which the builds took turns."""


def choose(contenders: Sequence[Contender], goal: Goal) -> tuple[str, str] | None:
    """(id of the build to keep, why), or None if there is none."""
    if not contenders:
        return None
    best = min(contenders, key=lambda item: (item.cost, item.order))
    equals = [item for item in contenders if item is best or _equal(item, best)]
    kept = min(equals, key=lambda item: item.order)
    word = {
        Goal.LATENCY: "fastest with batch 1",
        Goal.THROUGHPUT: "most samples per second",
        Goal.SIZE: "smallest",
    }[goal]
    if kept is best:
        return kept.id, word
    return kept.id, f"no slower than {best.title} beyond the noise, and simpler" if (
        goal is not Goal.SIZE
    ) else f"as small as {best.title}, and simpler"


def why_not(item: Contender, kept: Contender, goal: Goal) -> str:
    """Why a verified build was not kept."""
    times = units.ratio(item.cost / kept.cost) if kept.cost else ""
    word = "the size" if goal is Goal.SIZE else "the time"
    if item.cost <= kept.cost * UNSURE:
        return f"equal to {kept.title}, which is simpler"
    return f"{times} {word} of {kept.title}"


def _equal(item: Contender, best: Contender) -> bool:
    if item.cost <= SAME * best.cost:
        return True
    if item.cost > UNSURE * best.cost:
        return False
    found = timing.ratio(item.rounds, best.rounds)
    return found is not None and found[1][0] <= 1.0


def by_id(contenders: Sequence[Contender]) -> Mapping[str, Contender]:
    """The contenders by id."""
    return {item.id: item for item in contenders}
