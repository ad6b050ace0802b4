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

    Without a confirmation (the program is too short for one, or was interrupted), and where it
    cannot tell, the plan tells the gain of the pairs.
    """
    if not found.kept:
        return None
    if confirmed is not None and not confirmed.guard.passed:
        return None
    clear = confirmed if confirmed is not None and confirmed.faster else None
    if confirmed is not None and clear is None and not agrees(confirmed, found.speedup):
        return None
    pays, compile_s = _pays_after(found.trials, found.kept, found.written.step_ms, found.now_ms)
    return Plan(
        boosts=found.kept,
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=dataclasses.asdict(found.facts),
        machine=machine,
        speedup=clear.speedup if clear is not None else found.speedup,
        speedup_interval=clear.interval if clear is not None else None,
        pairs=clear.pairs if clear is not None else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays,
        compile_s=compile_s,
    )


def paying(found: Found, steps: int | None) -> Found:
    """Without what is compiled, where a run of so many steps would not win its time back."""
    written_ms, now_ms = found.written.step_ms, found.now_ms
    pays, compile_s = _pays_after(found.trials, found.kept, written_ms, now_ms)
    if steps is None or pays is None or pays <= steps:
        return found
    dear = {boost.id: boost.gain or 1.0 for boost in found.kept if known.get(boost.id).compiles}
    reason = f"compiling takes {compile_s:.0f} s, which a run of {steps:,} steps does not win back"
    rows = tuple(
        dataclasses.replace(row, verdict=Verdict.SLOWER, reason=reason)
        if row.tried in dear and row.verdict is Verdict.KEPT
        else row
        for row in found.trials
    )
    return dataclasses.replace(
        found,
        trials=rows,
        kept=tuple(boost for boost in found.kept if boost.id not in dear),
        now_ms=now_ms * math.prod(dear.values()) if now_ms is not None else None,
    )


def agrees(confirmed: Confirmation, gain: float | None) -> bool:
    """Whether fresh processes, which cannot tell a small gain from none, do not deny this one.

    Two processes differ by more than two neighbouring blocks of one. What was kept there was faster
    beyond doubt, each boost by itself.
    """
    low, high = confirmed.interval
    return gain is not None and low <= gain <= high and confirmed.speedup >= 1.0


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
