"""From kept and confirmed boosts to a plan: never one that is slower or learns differently."""

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
from flatout.running.one.command import Command, script_sha256
from flatout.tuning.trials import Found

ONE_PAIR = 1.25
"""A single pair may be off by this factor: on shared machines two runs of one program differ by up
to 30 %."""
SECOND_WORTH = 1.03
"""What remains of a refused plan is confirmed only if it promises this much."""


def plan(
    command: Command,
    search: Found,
    confirmation: Confirmation | None,
    machine: Identity,
    steps_left: int | None = None,
) -> Plan | None:
    """The plan, or None if nothing was kept or the confirmation contradicts it.

    If the confirmation is inconclusive or missing (the program is too short for one, or was
    interrupted), the plan states the gain of the pairs.
    """
    if not search.kept:
        return None
    if confirmation is None and search.speedup is not None and search.speedup <= 1.0:
        return None  # no gain was seen when all were compared once more
    if confirmation is not None and not holds(search, confirmation):
        return None
    proof = confirmation if confirmation is not None and confirmation.faster else None
    speedup = search.speedup
    if (
        speedup is not None
        and confirmation is not None
        and confirmation.interval is None
        and not confirmation.disturbed
    ):
        speedup = min(speedup, confirmation.speedup)  # of a single pair
    pays_after, compile_s = _pays_after(
        search.trials, search.kept, search.written.step_ms, search.now_ms
    )
    return Plan(
        boosts=search.kept,
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=search.facts,
        machine=machine,
        speedup=proof.speedup if proof is not None else speedup,
        speedup_interval=proof.interval if proof is not None else None,
        pairs=proof.pairs if proof is not None else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays_after,
        compile_s=compile_s,
    )


def paying(search: Found, steps: int | None) -> Found:
    """Without compiled boosts if compiling costs more than a run of `steps` steps saves."""
    pays_after, compile_s = _pays_after(
        search.trials, search.kept, search.written.step_ms, search.now_ms
    )
    if steps is None or pays_after is None or pays_after <= steps:
        return search
    compiled = {boost.id for boost in search.kept if known.get(boost.id).compiles}
    reason = f"compiling takes {compile_s:.0f} s, more than a run of {steps:,} steps saves"
    return _without(search, compiled, Verdict.SLOWER, reason)


def holds(search: Found, confirmation: Confirmation) -> bool:
    """Whether the plan learns the same in fresh processes, and these do not deny its gain."""
    faster = confirmation.faster or agrees(confirmation, search.speedup)
    return confirmation.guard.passed and faster


def second_choice(search: Found, confirmation: Confirmation) -> Found | None:
    """The search without the boosts that may have caused the confirmation to refuse its plan.

    If the losses differ, these are the boosts that change numbers. If the plan is not faster, they
    are those that change loading: batches that were ready before a block make it look fast. None
    if the plan is not refused, or if what remains promises nothing.
    """
    if holds(search, confirmation):
        return None
    if confirmation.guard.passed:
        suspects = {b.id for b in search.kept if known.get(b.id).loads}
        verdict, reason = Verdict.SLOWER, "A/B runs did not show the gain of a plan with it"
    else:
        suspects = {b.id for b in search.kept if b.risk != "exact" or known.get(b.id).redraws}
        verdict, reason = Verdict.DIFFERENT, f"in A/B runs: {confirmation.guard.reason}"
    rest = dataclasses.replace(_without(search, suspects, verdict, reason), guard=None)
    worth = rest.speedup is None or rest.speedup >= SECOND_WORTH
    return rest if suspects and rest.kept and worth else None


def failed(search: Found, error: str) -> Found:
    """The search without its plan, with which the program fails in fresh processes."""
    kept_ids = {boost.id for boost in search.kept}
    return _without(search, kept_ids, Verdict.FAILED, f"in A/B runs the program failed: {error}")


def _without(search: Found, ids: set[str], verdict: Verdict, reason: str) -> Found:
    """The search as if it had not kept these boosts, each with this verdict."""
    rows = tuple(
        dataclasses.replace(row, verdict=verdict, reason=reason)
        if row.tried in ids and row.verdict is Verdict.KEPT
        else row
        for row in search.trials
    )
    gains = [boost.gain for boost in search.kept if boost.id in ids]
    known_gains = [gain for gain in gains if gain is not None]
    # The gain of boosts that were measured with the others only cannot be told from theirs.
    now_ms = search.now_ms if len(known_gains) == len(gains) else None
    return dataclasses.replace(
        search,
        trials=rows,
        kept=tuple(boost for boost in search.kept if boost.id not in ids),
        now_ms=now_ms * math.prod(known_gains) if now_ms is not None else None,
    )


CLEAR_PAIR = 1.3
"""A single pair that shows so much confirms a gain, also one that was larger between steps."""


def agrees(confirmation: Confirmation, gain: float | None) -> bool:
    """Whether fresh processes, too noisy to confirm a small gain, are consistent with it.

    Two processes differ by more than neighbouring blocks of one process, and between blocks each
    kept boost was clearly faster. Disturbed pairs contradict nothing, and neither does a larger
    gain: the smaller one is told. gain: 1 if no gain was seen when all were compared once more.
    """
    if gain is None or gain <= 1.0:
        return False
    if confirmation.disturbed:
        return True
    if confirmation.interval is None and confirmation.speedup >= CLEAR_PAIR:
        return True
    _, high = confirmation.interval or (0.0, confirmation.speedup * ONE_PAIR)
    return gain <= high and confirmation.speedup >= 1.0


def redrawn(plan: Plan | None) -> tuple[str, ...]:
    """The plan's boosts that draw other random numbers."""
    boosts = plan.boosts if plan is not None else ()
    return tuple(boost.id for boost in boosts if known.get(boost.id).redraws)


def of_run(command: Command, run: LiveRun, machine: Identity, before: Plan) -> Plan | None:
    """The plan that a run found while it trained, or None if nothing is kept.

    before: the initial plan; its facts about the program as written are carried over.
    """
    boosts = live.planned(run, before.boosts)
    if not boosts or run.summary is None:
        return None
    written_ms, now_ms = run.summary.written_ms, run.summary.now_ms
    sha256 = script_sha256(command.script)
    unchanged = boosts == before.boosts and sha256 == before.script_sha256
    pays_after, compile_s = _pays_after(live.rows(run), boosts, written_ms, now_ms)
    return Plan(
        boosts=boosts,
        command=command.display,
        script_sha256=sha256,
        job=before.job or run.facts,
        machine=machine,
        speedup=run.speedup or (before.speedup if unchanged else None),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays_after,
        compile_s=compile_s,
    )


def _pays_after(
    rows: Sequence[Trial],
    boosts: Sequence[PlannedBoost],
    written_ms: float | None,
    now_ms: float | None,
) -> tuple[int | None, float | None]:
    """(steps until compiling pays, compile seconds), or None if nothing is compiled."""
    compiled_ids = {boost.id for boost in boosts if known.get(boost.id).compiles}
    times = [
        row.measured.compile_s
        for row in rows
        if row.tried in compiled_ids and row.verdict is Verdict.KEPT and row.measured is not None
    ]
    if not times or written_ms is None or now_ms is None:
        return None, None
    saved_ms = written_ms - now_ms
    return (math.ceil(1000 * sum(times) / saved_ms) if saved_ms > 0 else None), sum(times)
