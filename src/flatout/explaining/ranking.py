"""Order hits: the root cause first, then what follows from it, harmless ones last.

1. Hits of one signature become one, at the earliest place, with all ranks that reported it.
2. A hit that a more specific one explains (`leads_to`, or near and less specific) is a consequence.
3. The earliest of the others is the root; the rank that the launcher names as the first to fail
   takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flatout.explaining.lines import DAY_S
from flatout.explaining.scanning import Hit
from flatout.nouns.signature import Confidence, Role

INCIDENT = 60
"""Lines of one source within which messages belong to one failure."""
ROOT_RANK = "root_rank"
"""The group that captures, in a launcher's summary, the rank that failed first."""
INCIDENT_OF_RANK = 8 * INCIDENT
"""The same if both give their rank, since lines of other ranks lie between."""
VAGUE = 3
"""Up to this specificity, a match only shows that something of this kind failed."""


@dataclass(eq=False)
class RankedCause:
    """One signature over all its hits."""

    first: Hit
    ranks: tuple[int, ...]
    count: int
    consequence_of: RankedCause | None = None
    rivals: int = 0
    """Other causes that explain the same place equally well."""

    @property
    def id(self) -> str:
        return self.first.signature.id

    @property
    def role(self) -> Role:
        return self.first.signature.role

    @property
    def specificity(self) -> int:
        return self.first.signature.specificity


def ranked(hits: Iterable[Hit]) -> list[RankedCause]:
    """All causes, best first."""
    everything = list(hits)
    ranks = (hit.captured.get(ROOT_RANK) for hit in everything)
    root_rank = next((int(rank) for rank in ranks if rank and rank.isdecimal()), None)
    key = _time_key(everything, root_rank)
    by_id: dict[str, list[Hit]] = {}
    for hit in sorted(everything, key=key):
        by_id.setdefault(hit.signature.id, []).append(hit)
    causes = []
    for group in by_id.values():
        reporting = (hit.evidence.rank for hit in group if hit.evidence.rank is not None)
        count = sum(hit.count for hit in group)
        causes.append(RankedCause(group[0], tuple(dict.fromkeys(reporting)), count))
    for cause in causes:
        cause.consequence_of = _reason(cause, causes)
    for cause in causes:
        cause.rivals = sum(
            1
            for rival in causes
            if rival is not cause
            and cause.consequence_of is None
            and rival.consequence_of is None
            and cause.role is rival.role
            and cause.specificity == rival.specificity
            and _same_incident(cause, rival)
        )
    _tie_up_echoes(causes)
    for cause in causes:
        cause.consequence_of = _first_reason(cause)
    places = {id(cause): number for number, cause in enumerate(causes)}  # by time
    return sorted(
        causes,
        key=lambda cause: (
            cause.role is Role.HARMLESS,
            cause.consequence_of is not None,
            _rung(cause),
            places[id(cause)],
        ),
    )


def _rung(cause: RankedCause) -> int:
    """The order of kinds: errors, reports of errors, vague signs, mere warnings."""
    vague = cause.specificity <= VAGUE
    return {Role.ERROR: 2 if vague else 0, Role.ECHO: 3 if vague else 1}.get(cause.role, 4)


def confidence(cause: RankedCause) -> Confidence:
    """How sure it is; two that explain one place equally well make each other less sure."""
    levels = tuple(Confidence)
    level = levels.index(cause.first.signature.confidence) + (cause.rivals > 0)
    return levels[min(level, len(levels) - 1)]


def _time_key(hits: Sequence[Hit], root: int | None) -> Callable[[Hit], tuple[bool, float, int]]:
    """A key by time if all hits have times of one kind, with or without a date; else by place."""
    times = [hit.evidence.time_s for hit in hits]
    timed = None not in times and len({time >= DAY_S for time in times if time is not None}) == 1

    def key(hit: Hit) -> tuple[bool, float, int]:
        other_rank = root is not None and hit.evidence.rank not in (None, root)
        return other_rank, (hit.evidence.time_s or 0.0) if timed else 0.0, hit.order

    return key


def _reason(cause: RankedCause, causes: Sequence[RankedCause]) -> RankedCause | None:
    """The cause that explains `cause` better than it does itself, or None."""
    parents = [candidate for candidate in causes if cause.id in candidate.first.signature.leads_to]
    if parents:
        return max(parents, key=lambda candidate: candidate.specificity)
    better = [
        candidate
        for candidate in causes
        if _same_incident(cause, candidate)
        and candidate.id not in cause.first.signature.leads_to
        and cause.role is candidate.role is not Role.HARMLESS
        and candidate.specificity > cause.specificity
    ]
    return max(better, key=lambda candidate: candidate.specificity, default=None)


def _first_reason(cause: RankedCause) -> RankedCause | None:
    """The root that `cause` follows from, over any number of steps, or None if it is a root.

    If several explain each other in a circle, the earliest is the root.
    """
    chain = [cause]
    while (reason := chain[-1].consequence_of) is not None:
        if reason in chain:
            first = min(chain[chain.index(reason) :], key=lambda other: other.first.order)
            first.consequence_of = None
            return None if first is cause else first
        chain.append(reason)
    return None if len(chain) == 1 else chain[-1]


def _same_incident(cause: RankedCause, other: RankedCause) -> bool:
    evidence, other_evidence = cause.first.evidence, other.first.evidence
    if cause is other or evidence.source != other_evidence.source:
        return False
    have_ranks = None not in (evidence.rank, other_evidence.rank)
    if have_ranks and evidence.rank != other_evidence.rank:
        return False
    return abs(evidence.line - other_evidence.line) <= (
        INCIDENT_OF_RANK if have_ranks else INCIDENT
    )


def _tie_up_echoes(causes: Sequence[RankedCause]) -> None:
    """Make reports of another process's death consequences of its error, if that is known."""
    root = next(
        (
            cause
            for cause in causes
            if cause.role is Role.ERROR
            and cause.consequence_of is None
            and cause.specificity > VAGUE
        ),
        None,
    )
    for cause in causes:
        if cause.role is Role.ECHO and cause.consequence_of is None:
            cause.consequence_of = root
