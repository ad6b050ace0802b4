"""Boosts that take hold only when a process starts: each in a duel of fresh processes."""

from __future__ import annotations

import dataclasses
import math
import time

from flatout.knowledge import boosts as known
from flatout.measuring import duel
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Observer
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Measured, Trial, Verdict, WhyUntried
from flatout.tuning.candidates import Candidate, Choice, candidates, skip
from flatout.tuning.trials import Found
from flatout_agent.live import paired

PAIRS = 4
WORTH = 1.03
"""A boost that promises less is tried only where the time for it is plentiful."""
PLENTIFUL = 6.0
WARM_STEPS = 12
"""Steps that each side of a duel takes beside those that are measured."""


def try_starts(
    bench: Bench,
    found: Found,
    choice: Choice,
    observer: Observer,
    deadline: float,
    limit_s: float,
) -> tuple[list[Trial], tuple[PlannedBoost, ...]]:
    """(a row for each, what is kept now). The time that each may take is `limit_s` at most.

    bench: with the windows of a duel.
    """
    kept = found.kept
    rows: list[Trial] = []
    for candidate in _waiting(found, choice):
        left_s = deadline - time.monotonic()
        cost_s = _cost_s(bench, found)
        dear = candidate.promise < WORTH and left_s < PLENTIFUL * cost_s
        if dear or left_s < 2 * cost_s:
            reason = f"no time left: it needs a fresh start, some {cost_s:.0f} s"
            rows.append(skip(kept, candidate.boost.id, reason, "no_time"))
        else:
            observer.started(candidate.boost.id, {}, len(rows) + 1, cost_s)
            row = _duel(bench, found, kept, candidate.variants[0], min(left_s, limit_s))
            rows.append(row)
            if row.verdict is Verdict.KEPT:
                kept = (*kept, _gained(candidate.variants[0], row.gain))
        observer.finished(rows[-1])
    return rows, kept


def _cost_s(bench: Bench, found: Found) -> float:
    """Seconds that a duel takes, as far as one can say before."""
    step_s = (found.now_ms or found.written.step_ms) / 1000
    window_s = max(bench.window_s, bench.min_steps * step_s)
    return 2 * (found.start_s + WARM_STEPS * step_s + PAIRS * window_s)


def _waiting(found: Found, choice: Choice) -> list[Candidate]:
    """What the running program could not switch, and applies to it."""
    waiting = {row.tried for row in found.trials if row.why_untried == "needs_start"}
    here, _ = candidates(found.facts, choice)
    return [
        candidate
        for candidate in here
        if candidate.boost.id in waiting
        and not any(candidate.boost.id in known.get(b.id).conflicts for b in found.kept)
    ]


def _gained(boost: PlannedBoost, gain: float | None) -> PlannedBoost:
    return PlannedBoost(boost.id, boost.params, gain, boost.risk)


def _duel(
    bench: Bench,
    found: Found,
    kept: tuple[PlannedBoost, ...],
    boost: PlannedBoost,
    limit_s: float,
) -> Trial:
    row = Trial(boosts=(*(b.id for b in kept), boost.id), tried=boost.id, params=boost.params)
    try:
        before, after = duel.fight(
            bench,
            (*kept, boost),
            found.facts,
            PAIRS,
            limit_s,
            against=kept,
            name=f"start-{boost.id}",
        )
    except duel.DuelFailedError as error:
        ended = isinstance(error, duel.EndedEarlyError)
        return _with(row, Verdict.FAILED, str(error), "program_ended" if ended else None)
    note = after.process.notes.get(boost.id)
    if note is not None and note.state in ("declined", "failed", "idle"):
        return _with(row, Verdict.SKIPPED, note.reason)
    pairs = zip(before.windows_ms, after.windows_ms, strict=True)
    ratios = [math.log(a / b) + _more_samples(boost) for a, b in pairs]
    answer = paired.answer(ratios, paired.Noise(found.noise, 3), most=PAIRS)
    faster = answer.verdict == "faster"
    return Trial(
        boosts=row.boosts,
        tried=row.tried,
        params=row.params,
        verdict=Verdict.KEPT if faster else Verdict.SLOWER,
        reason="fresh processes in turn" if faster else "not faster beyond the noise",
        gain=answer.gain,
        measured=Measured(after.windows_ms[-1], None, after.windows_ms, after.losses),
        interval=(answer.low, answer.high),
        pairs=answer.pairs,
    )


def _more_samples(boost: PlannedBoost) -> float:
    """A batch that is so many times as large trains on so many times the samples in a step."""
    return math.log(float(boost.params["factor"])) if boost.id == "batch-size" else 0.0


def _with(row: Trial, verdict: Verdict, reason: str, why: WhyUntried | None = None) -> Trial:
    return dataclasses.replace(row, verdict=verdict, reason=reason, why_untried=why)
