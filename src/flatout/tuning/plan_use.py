"""A run's initial plan: whether it fits this machine, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flatout.nouns.plan import Plan, PlannedBoost
from flatout.probing.identity import identity
from flatout.running.one import chosen_boosts
from flatout.running.one.command import Command, script_sha256
from flatout.tuning import plan_file

Warn = Callable[[str], None]


def variables(
    plan: Plan, boosts: Sequence[PlannedBoost], command: Command, warn: Warn
) -> dict[str, str]:
    """The variables that its boosts need; warns if it was measured on another setup."""
    if not plan.boosts:
        return {}
    machine = identity()
    if differences := plan_file.differences(
        plan, machine, script_sha256(command.script), command.display
    ):
        warn(f"not what the plan was measured on: {'; '.join(differences)}")
    return chosen_boosts.environment(boosts, plan.job, machine)
