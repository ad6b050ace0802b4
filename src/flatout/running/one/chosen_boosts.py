"""The boosts of a plan that a run applies, and the environment variables that they need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from flatout.knowledge import boosts as known
from flatout.knowledge import jobs
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.plan import PlannedBoost
from flatout_agent import wire


def choose(
    planned: Sequence[PlannedBoost], only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[PlannedBoost, ...]:
    """The planned boosts without the unwanted ones. Raises UserError if that cannot be done."""
    planned_ids = [boost.id for boost in planned]
    for boost_id in [*only, *skip]:
        if boost_id not in known.ids():
            suggestions = known.nearest(boost_id)
            cure = "flatout eject lists those of the plan"
            if suggestions:
                cure = f"did you mean {' or '.join(suggestions)}?"
            raise UserError(f"there is no boost {boost_id!r}", cure, 2)
    for boost_id in only:
        if boost_id not in planned_ids:
            listing = f"it has {', '.join(planned_ids)}" if planned_ids else "it has none"
            raise UserError(f"the plan does not have the boost {boost_id!r}", listing, 2)
    chosen = tuple(
        boost for boost in planned if boost.id not in skip and (not only or boost.id in only)
    )
    for first, second in combinations(chosen, 2):
        if second.id in known.get(first.id).conflicts:
            raise UserError(
                f"{first.id} and {second.id} cannot be on together",
                f"remove one of them from the plan, or add --skip {second.id}",
                2,
            )
    return chosen


def orders(boosts: Sequence[PlannedBoost]) -> tuple[wire.BoostOrder, ...]:
    """The orders to the agent for these boosts."""
    return tuple(wire.BoostOrder(boost.id, dict(boost.params)) for boost in boosts)


def environment(
    boosts: Sequence[PlannedBoost], job: wire.JobFacts | None, machine: Identity
) -> dict[str, str]:
    """Variables that must be set before the program starts.

    job: the facts recorded when the plan was made, or None if it was written by hand.
    """
    facts = job or jobs.unseen(machine)
    variables: dict[str, str] = {}
    for boost in boosts:
        variables |= known.get(boost.id).environment(facts, dict(boost.params))
    return variables
