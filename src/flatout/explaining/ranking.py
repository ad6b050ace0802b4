"""From hits to an order: the root cause first, then what follows from it, harmless ones last.

1. Hits of one signature become one; its place is the earliest, its ranks are all that reported it.
2. What a weightier one explains (`leads_to`, or near it and less particular) is its consequence.
3. Of the others the one that comes first in time is the root; the rank that the launcher names as
   the first to fail goes before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flatout.explaining.lines import DAY_S
from flatout.explaining.scanning import Hit
from flatout.nouns.explained import Confidence
from flatout.nouns.signature import Role

INCIDENT = 60
"""Lines of one source within which messages belong to one failure."""
ROOT_RANK = "root_rank"
"""The group by which a launcher's summary names the rank that failed first."""
INCIDENT_OF_RANK = 8 * INCIDENT
"""The same where both tell their rank: the lines of the other ranks stand between."""
VAGUE = 3
"""Up to this specificity a match only shows that something of a kind failed."""


@dataclass(eq=False)
class Found:
    """One signature over all its hits."""

    first: Hit
    ranks: tuple[int, ...]
    count: int
    consequence_of: Found | None = None
    rivals: int = 0
    """Others that explain the same place as well as this one."""

    @property
    def id(self) -> str:
        return self.first.signature.id

    @property
    def role(self) -> Role:
        return self.first.signature.role

    @property
    def specificity(self) -> int:
        return self.first.signature.specificity


def ranked(hits: Iterable[Hit]) -> list[Found]:
    """All that was found, best first."""
    everything = list(hits)
    key = _time_key(everything, _root_rank(everything))
    found = _together(sorted(everything, key=key))
    for item in found:
        item.consequence_of = _reason(item, found)
    for item in found:
        item.rivals = sum(1 for other in found if other is not item and _rivals(item, other))
    _tie_up_echoes(found)
    for item in found:
        item.consequence_of = _first_reason(item)
    places = {id(item): number for number, item in enumerate(found)}  # by time
    return sorted(
        found,
        key=lambda item: (
            item.role is Role.HARMLESS,
            item.consequence_of is not None,
            _rung(item),
            places[id(item)],
        ),
    )


def _rung(found: Found) -> int:
    """Errors before reports of them, those before vague signs, all before mere warnings."""
    vague = found.specificity <= VAGUE
    return {Role.ERROR: 2 if vague else 0, Role.ECHO: 3 if vague else 1}.get(found.role, 4)


def confidence(found: Found) -> Confidence:
    """How sure; two that explain one place equally well make each other less sure."""
    level = 0 if found.specificity >= 7 else 1 if found.specificity > VAGUE else 2
    level = min(level + (found.rivals > 0), 2)
    return (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)[level]


def _root_rank(hits: Sequence[Hit]) -> int | None:
    named = (hit.captured.get(ROOT_RANK) for hit in hits)
    return next((int(rank) for rank in named if rank and rank.isdecimal()), None)


def _time_key(hits: Sequence[Hit], root: int | None) -> Callable[[Hit], tuple[bool, float, int]]:
    """By time where every hit tells it in one way, with a date or without, else by place."""
    times = [hit.evidence.time_s for hit in hits]
    timed = None not in times and len({time >= DAY_S for time in times if time is not None}) == 1

    def key(hit: Hit) -> tuple[bool, float, int]:
        other_rank = root is not None and hit.evidence.rank not in (None, root)
        return other_rank, (hit.evidence.time_s or 0.0) if timed else 0.0, hit.order

    return key


def _together(hits: Sequence[Hit]) -> list[Found]:
    by_id: dict[str, list[Hit]] = {}
    for hit in hits:
        by_id.setdefault(hit.signature.id, []).append(hit)
    found = []
    for same in by_id.values():
        ranks = dict.fromkeys(hit.evidence.rank for hit in same if hit.evidence.rank is not None)
        found.append(Found(same[0], tuple(ranks), sum(hit.count for hit in same)))
    return found


def _reason(item: Found, found: Sequence[Found]) -> Found | None:
    """What explains `item` better than it explains itself; None: nothing does."""
    named = [other for other in found if item.id in other.first.signature.leads_to]
    if named:
        return max(named, key=lambda other: other.specificity)
    better = [other for other in found if _same_incident(item, other) and _outweighs(other, item)]
    return max(better, key=lambda other: other.specificity, default=None)


def _first_reason(item: Found) -> Found | None:
    """The root that `item` follows from, over any number of steps; None: it is a root itself.

    Of several that explain each other in a circle the earliest is the root.
    """
    chain = [item]
    while (reason := chain[-1].consequence_of) is not None:
        if reason in chain:
            first = min(chain[chain.index(reason) :], key=lambda other: other.first.order)
            first.consequence_of = None
            return None if first is item else first
        chain.append(reason)
    return None if len(chain) == 1 else chain[-1]


def _outweighs(better: Found, item: Found) -> bool:
    if better.id in item.first.signature.leads_to:
        return False
    if better.role is Role.HARMLESS or item.role is Role.HARMLESS:
        return False
    if better.role is not item.role:
        return False
    return better.specificity > item.specificity


def _rivals(item: Found, other: Found) -> bool:
    return (
        item.consequence_of is None
        and other.consequence_of is None
        and item.role is other.role
        and item.specificity == other.specificity
        and _same_incident(item, other)
    )


def _same_incident(one: Found, other: Found) -> bool:
    here, there = one.first.evidence, other.first.evidence
    if one is other or here.source != there.source:
        return False
    ranked = None not in (here.rank, there.rank)
    if ranked and here.rank != there.rank:
        return False
    return abs(here.line - there.line) <= (INCIDENT_OF_RANK if ranked else INCIDENT)


def _tie_up_echoes(found: Sequence[Found]) -> None:
    """Reports that another one died follow from why it died, where that is known."""
    root = next(
        (
            item
            for item in found
            if item.role is Role.ERROR and item.consequence_of is None and item.specificity > VAGUE
        ),
        None,
    )
    for item in found:
        if item.role is Role.ECHO and item.consequence_of is None:
            item.consequence_of = root
