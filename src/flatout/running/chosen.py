"""Which boosts of a plan a run applies, and the environment variables that they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from flatout.knowledge import boosts as known
from flatout.knowledge import jobs
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.plan import PlannedBoost
from flatout_agent import wire


def choose(
    planned: Sequence[PlannedBoost], only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[PlannedBoost, ...]:
    """The planned boosts without those not wanted. Raises UserError for what cannot be honoured."""
    named = [boost.id for boost in planned]
    for boost_id in [*only, *skip]:
        if boost_id not in known.ids():
            near = known.nearest(boost_id)
            cure = (
                f"did you mean {' or '.join(near)}?" if near else "flatout eject lists the plan's"
            )
            raise UserError(f"there is no boost {boost_id!r}", cure, 2)
    for boost_id in only:
        if boost_id not in named:
            has = f"it has {', '.join(named)}" if named else "it has none"
            raise UserError(f"the plan does not have the boost {boost_id!r}", has, 2)
    kept = tuple(
        boost for boost in planned if boost.id not in skip and (not only or boost.id in only)
    )
    for one, other in combinations(kept, 2):
        if other.id in known.get(one.id).conflicts:
            raise UserError(
                f"{one.id} and {other.id} cannot be on together",
                f"take one out of the plan, or add --skip {other.id}",
                2,
            )
    return kept


def orders(boosts: Sequence[PlannedBoost]) -> tuple[wire.BoostOrder, ...]:
    """What the agent is told of them."""
    return tuple(wire.BoostOrder(boost.id, dict(boost.params)) for boost in boosts)


def environment(
    boosts: Sequence[PlannedBoost], job: Mapping[str, Any] | None, here: Identity
) -> dict[str, str]:
    """Variables that must be set before the program starts.

    job: what was seen of the program when the plan was made; a plan written by hand has none.
    """
    facts = jobs.facts(job) if job else jobs.unseen(here)
    asked: dict[str, str] = {}
    for boost in boosts:
        asked |= known.get(boost.id).environment(facts, dict(boost.params))
    return asked
