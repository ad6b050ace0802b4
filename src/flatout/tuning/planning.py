"""From what was kept and confirmed to a plan: never one that is not faster or not the same."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime

from flatout.knowledge import boosts as known
from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan
from flatout.nouns.trial import Measured, Verdict
from flatout.nouns.tuned import Confirmation
from flatout.running.command import Command, script_sha256
from flatout.tuning.search import Search


def plan(
    command: Command,
    search: Search,
    confirmed: Confirmation | None,
    machine: Identity,
    best: Measured | None,
) -> Plan | None:
    """The plan; None where nothing was kept, or the confirmation speaks against it.

    An interrupted search may give a plan that was not confirmed: it then tells no speed-up.
    """
    if not search.kept:
        return None
    if confirmed is not None and (confirmed.interval[0] <= 1.0 or not confirmed.guard.passed):
        return None
    if confirmed is None and not search.interrupted:
        return None
    pays, compile_s = _pays_after(search, best or search.incumbent)
    return Plan(
        boosts=tuple(search.kept),
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=dataclasses.asdict(search.facts),
        machine=machine,
        speedup=confirmed.speedup if confirmed is not None else None,
        speedup_interval=confirmed.interval if confirmed is not None else None,
        pairs=confirmed.pairs if confirmed is not None else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays,
        compile_s=compile_s,
    )


def _pays_after(search: Search, best: Measured | None) -> tuple[int | None, float | None]:
    """(steps until the compile time is won back, that time); None where nothing is compiled."""
    kept = {boost.id for boost in search.kept if known.get(boost.id).compiles}
    times = [
        row.measured.compile_s
        for row in search.trials
        if row.tried in kept and row.verdict is Verdict.KEPT and row.measured is not None
    ]
    if not times or best is None:
        return None, None
    won_ms = search.untouched_figures.step_ms - best.step_ms
    return (math.ceil(1000 * sum(times) / won_ms) if won_ms > 0 else None), sum(times)
