"""Boosts that take effect only when a process starts: each gets a duel of fresh processes."""

from __future__ import annotations

import dataclasses
import math
import time

from flatout.knowledge import boosts as known
from flatout.measuring import duel
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Observer
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Measurement, Trial, Verdict, WhyUntried
from flatout.tuning.candidates import Allowance, applicable, skip
from flatout.tuning.trials import Found
from flatout_agent.live import decide

PAIRS = 4
WORTH = 1.03
"""A boost that promises less is tried only if there is plenty of time."""
PLENTIFUL = 6.0
WARM_STEPS = 12
"""Steps of each side of a duel that are not measured."""


def try_starts(
    bench: Bench,
    search: Found,
    choice: Allowance,
    observer: Observer,
    deadline: float,
) -> tuple[list[Trial], tuple[PlannedBoost, ...]]:
    """(a row for each, the boosts kept now).

    bench: set up with the windows of a duel.
    """
    boosts = search.kept
    rows: list[Trial] = []
    step_s = (search.now_ms or search.written.step_ms) / 1000
    window_s = max(bench.window_s, bench.min_steps * step_s)
    cost_s = 2 * (search.start_s + WARM_STEPS * step_s + PAIRS * window_s)  # of a duel
    ids = {row.tried for row in search.trials if row.why_untried == "needs_start"}
    for promise, boost in applicable(search.facts, choice):
        conflicts = any(boost.id in known.get(kept.id).conflicts for kept in search.kept)
        if boost.id not in ids or conflicts:
            continue
        left_s = deadline - time.monotonic()
        too_costly = promise < WORTH and left_s < PLENTIFUL * cost_s
        if too_costly or left_s < 2 * cost_s:
            reason = f"its expected gain is small, and fresh processes take about {cost_s:.0f} s"
            if promise >= WORTH:
                reason = f"no time left: it needs fresh processes, about {cost_s:.0f} s"
            rows.append(skip(boosts, boost.id, reason, "no_time"))
        else:
            observer.started(boost.id, {}, len(rows) + 1, cost_s)
            row = _duel(bench, search, boosts, boost, left_s)
            rows.append(row)
            if row.verdict is Verdict.KEPT:
                boosts = (*boosts, dataclasses.replace(boost, gain=row.gain))
        observer.finished(rows[-1])
    return rows, boosts


def _duel(
    bench: Bench,
    search: Found,
    boosts: tuple[PlannedBoost, ...],
    boost: PlannedBoost,
    limit_s: float,
) -> Trial:
    ids = tuple(planned.id for planned in (*boosts, boost))
    row = Trial(boosts=ids, tried=boost.id, params=boost.params)
    try:
        before, after = duel.fight(
            bench,
            (*boosts, boost),
            search.facts,
            PAIRS,
            limit_s,
            against=boosts,
            name=f"start-{boost.id}",
        )
    except duel.DuelFailedError as error:
        ended = isinstance(error, duel.EndedEarlyError) and not error.failed
        return _with(row, Verdict.FAILED, str(error), "program_ended" if ended else None)
    note = after.process.notes.get(boost.id)
    if note is not None and note.state in ("declined", "failed", "idle"):
        return _with(row, Verdict.SKIPPED, note.reason)
    pairs = zip(before.windows_ms, after.windows_ms, strict=True)
    ratios = [math.log(old_ms / new_ms) for old_ms, new_ms in pairs]
    answer = decide.answer(ratios, decide.Noise(search.noise, 3), most=PAIRS)
    faster = answer.verdict == "faster"
    return Trial(
        boosts=row.boosts,
        tried=row.tried,
        params=row.params,
        verdict=Verdict.KEPT if faster else Verdict.SLOWER,
        reason="measured in fresh processes, in turn" if faster else "not faster beyond the noise",
        gain=answer.gain,
        measured=Measurement(after.windows_ms[-1], None, after.windows_ms, after.losses),
        interval=(answer.low, answer.high),
        pairs=answer.pairs,
    )


def _with(row: Trial, verdict: Verdict, reason: str, why: WhyUntried | None = None) -> Trial:
    return dataclasses.replace(row, verdict=verdict, reason=reason, why_untried=why)
