"""From what was kept and confirmed to a plan: never one that is not faster or not the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import UTC, datetime

from flatout.knowledge import boosts as known
from flatout.measuring import live
from flatout.measuring.live import LiveRun
from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Confirmation
from flatout.running.command import Command, script_sha256
from flatout.tuning.trials import Found


def plan(
    command: Command,
    found: Found,
    confirmed: Confirmation | None,
    machine: Identity,
    steps_left: int | None = None,
) -> Plan | None:
    """The plan; None where nothing was kept, or the confirmation speaks against it.

    Without a confirmation (the program is too short for one, or was interrupted) the plan tells the
    gain of the pairs.
    """
    if not found.kept:
        return None
    if confirmed is not None and (confirmed.interval[0] <= 1.0 or not confirmed.guard.passed):
        return None
    pays, compile_s = _pays_after(found.trials, found.kept, found.written.step_ms, found.now_ms)
    return Plan(
        boosts=found.kept,
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=dataclasses.asdict(found.facts),
        machine=machine,
        speedup=confirmed.speedup if confirmed is not None else found.speedup,
        speedup_interval=confirmed.interval if confirmed is not None else None,
        pairs=confirmed.pairs if confirmed is not None else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays,
        compile_s=compile_s,
    )


def of_run(command: Command, run: LiveRun, machine: Identity, before: Plan) -> Plan | None:
    """The plan that a run found while it trained; None where nothing is kept.

    before: the plan that it began with. The facts of the program as written are that one's.
    """
    kept = live.planned(run, before.boosts)
    if not kept or run.summary is None:
        return None
    written_ms, now_ms = run.summary.written_ms, run.summary.now_ms
    pays, compile_s = _pays_after(live.rows(run), kept, written_ms, now_ms)
    return Plan(
        boosts=kept,
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=before.job or (dataclasses.asdict(run.facts) if run.facts is not None else None),
        machine=machine,
        speedup=run.speedup,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays,
        compile_s=compile_s,
    )


def _pays_after(
    rows: Sequence[Trial],
    kept: Sequence[PlannedBoost],
    written_ms: float | None,
    now_ms: float | None,
) -> tuple[int | None, float | None]:
    """(steps until the compile time is won back, that time); None where nothing is compiled."""
    compiled = {boost.id for boost in kept if known.get(boost.id).compiles}
    times = [
        row.measured.compile_s
        for row in rows
        if row.tried in compiled and row.verdict is Verdict.KEPT and row.measured is not None
    ]
    if not times or written_ms is None or now_ms is None:
        return None, None
    won_ms = written_ms - now_ms
    return (math.ceil(1000 * sum(times) / won_ms) if won_ms > 0 else None), sum(times)
