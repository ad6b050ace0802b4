"""Try boosts in throw-away processes that are tuned while they train, and collect the results.

One process tries all boosts that can be switched in a running program. A program that ends too
early is started again with the boosts kept so far, until each boost has its verdict, the budget is
used up, or a whole run decides nothing more.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from flatout.knowledge import boosts as known
from flatout.measuring import live
from flatout.measuring.live import FinishedTuning, LiveRun
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Observer
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Guard, Measurement, StepBlock, Trial, Verdict
from flatout.tuning import unmeasurable
from flatout.tuning.candidates import Allowance, skip
from flatout_agent import wire

CONFIRM_SHARE = 0.25
"""Share of the budget that is held back for the confirmation, but at most ..."""
CONFIRM_S = 60.0
"""... this many seconds."""
HANG_S = 120.0
"""A process may outlive its own budget by at most this (a compilation, a long step)."""


@dataclass(frozen=True)
class Found:
    """What the throw-away processes found."""

    facts: wire.JobFacts
    written: Measurement
    """The program as written."""
    kept: tuple[PlannedBoost, ...] = ()
    trials: tuple[Trial, ...] = ()
    blocks: tuple[StepBlock, ...] = ()
    guard: Guard | None = None
    noise: float = 0.0
    now_ms: float | None = None
    """Step time with all kept boosts on."""
    run_steps: int | None = None
    """Steps of a whole run, where one ran to its end."""
    run_s: float = 0.0
    """Wall time of one process ..."""
    start_s: float = 0.0
    """... and of its start, up to the first step."""
    redirected: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    interrupted: bool = False
    micro_steps: bool = False

    @property
    def speedup(self) -> float | None:
        """Step time as written over step time with the kept boosts, by neighbouring blocks."""
        gains = [boost.gain for boost in self.kept if boost.gain]
        product = 1.0
        for gain in gains:
            product *= gain
        return product if gains else None

    @property
    def tried(self) -> bool:
        """Whether any boost was fairly tried, or none applies to this program."""
        untried = [row for row in self.trials if row.left]
        return not untried or any(row.pairs or row.guard is not None for row in self.trials)


@dataclass
class _Search:
    """The search so far."""

    kept: tuple[PlannedBoost, ...] = ()
    rows: list[Trial] = field(default_factory=list)
    blocks: list[StepBlock] = field(default_factory=list)
    runs: list[FinishedTuning] = field(default_factory=list)
    first: LiveRun | None = None
    interrupted: bool = False


def find(
    bench: Bench, choice: Allowance, observer: Observer, deadline: float, steps_left: int | None
) -> Found:
    """Raises UserError where the program as written cannot be measured, KeyboardInterrupt where
    it was interrupted before that.
    """
    allowed, refusals = _allowed(choice)
    search = _Search()
    observer.phase("switching boosts on and off in a running program")
    while True:
        try:
            attempt = _run_process(bench, search, allowed, observer, deadline, steps_left)
        except KeyboardInterrupt:
            if search.first is None or search.first.facts is None:
                raise
            search.interrupted = True
            break
        if search.first is None or not attempt.run.blocks or _over(attempt, search, deadline):
            break
        steps_left = steps_left or live.steps_of(attempt)
    for row in refusals:
        observer.finished(row)
    return _result(search, refusals)


def _allowed(choice: Allowance) -> tuple[tuple[str, ...], list[Trial]]:
    reasons = {boost.id: choice.refuses(boost) for boost in known.every()}
    allowed = tuple(boost for boost, reason in reasons.items() if reason is None)
    return allowed, [skip((), boost, reason) for boost, reason in reasons.items() if reason]


def _run_process(
    bench: Bench,
    search: _Search,
    allowed: tuple[str, ...],
    observer: Observer,
    deadline: float,
    steps_left: int | None,
) -> FinishedTuning:
    """One more process; raises UserError where the first one gives no measurement."""
    left_s = max(0.0, deadline - time.monotonic())
    budget_s = left_s - min(CONFIRM_S, CONFIRM_SHARE * left_s)
    orders = wire.LiveOrders(
        allowed=allowed,
        settled=tuple(row.tried for row in search.rows if row.tried and not row.left),
        steps=steps_left,
        budget_s=budget_s,
        stop=True,
        seed=bench.seed + len(search.runs),
    )
    run = LiveRun()
    on = [boost.id for boost in search.kept]
    relay = _Relay(observer, run, on, search.first is not None)
    facts = search.first.facts if search.first is not None else None
    name = f"live-{len(search.runs) + 1}"
    observer.started(None, {}, len(search.runs) + 1, None)
    if search.first is None:
        search.first = run
    try:
        limit_s = left_s + HANG_S if budget_s > 30 else left_s
        attempt = live.run(bench, name, search.kept, facts, orders, limit_s, run, relay)
    finally:
        _add(search, run)
    search.runs.append(attempt)
    if run.facts is None or live.written(run) is None:
        if len(search.runs) == 1:
            raise unmeasurable.why(attempt)
        search.runs.pop()
    return attempt


def _add(search: _Search, run: LiveRun) -> None:
    on = [boost.id for boost in search.kept]
    rows = live.rows(run, on)
    search.rows = [row for row in search.rows if row.verdict is not Verdict.SKIPPED or not row.left]
    search.rows += [row for row in rows if row.tried not in on or row.verdict is not Verdict.KEPT]
    search.kept = live.planned(run, search.kept)
    last = search.blocks[-1].step if search.blocks else 0
    search.blocks += [dataclasses.replace(block, step=last + block.step) for block in run.blocks]


def _over(attempt: FinishedTuning, search: _Search, deadline: float) -> bool:
    """Whether another process would bring nothing."""
    decisions = [d for d in attempt.run.decisions if d.pairs or d.gradient_error is not None]
    unfinished = [row for row in search.rows if row.why_untried == "program_ended"]
    return not unfinished or not decisions or deadline - time.monotonic() < 2 * attempt.wall_s


class _Relay:
    """Passes the agent's records on to the observer."""

    def __init__(self, observer: Observer, run: LiveRun, on: list[str], written: bool) -> None:
        """written: the program as written has its row already."""
        self.observer, self.run, self.on, self.written = observer, run, on, written

    def __call__(self, record: wire.Record) -> None:
        if isinstance(record, wire.Decided):
            row = live.trial(record, self.on)
            if record.verdict == "kept" and record.id in self.on:
                return
            self.observer.finished(row)
            if record.verdict == "kept":
                self.on.append(record.id)
        elif isinstance(record, wire.LiveSummary) and not self.written:
            self.written = True
            for row in _row_as_written(self.run):
                self.observer.finished(row)
        elif isinstance(record, wire.BlockRun):
            phase = " + ".join(record.on) or "as written"
            self.observer.step(record.step, phase, record.ms / 1000)


def _row_as_written(run: LiveRun) -> tuple[Trial, ...]:
    row = live.as_written(run)
    return (row,) if row is not None else ()


def _result(search: _Search, refusals: list[Trial]) -> Found:
    first = search.first
    assert first is not None
    assert first.facts is not None
    baseline = live.written(first)
    assert baseline is not None
    last = search.runs[-1] if search.runs else None
    summary = first.summary
    run_lengths = [steps for steps in map(live.steps_of, search.runs) if steps]
    last_summary = last.run.summary if last is not None else summary
    return Found(
        facts=first.facts,
        written=baseline,
        kept=search.kept,
        trials=(*_row_as_written(first), *search.rows, *refusals),
        blocks=tuple(search.blocks),
        guard=live.guard(last.run) if last is not None else None,
        noise=summary.noise or 0.0 if summary is not None else 0.0,
        now_ms=last_summary.now_ms if last_summary is not None else None,
        run_steps=min(run_lengths, default=None),
        run_s=max((attempt.wall_s for attempt in search.runs), default=0.0),
        start_s=max((attempt.start_s for attempt in search.runs), default=0.0),
        redirected=tuple(
            dict.fromkeys(
                path for attempt in search.runs for path in attempt.run.processes.redirected
            )
        ),
        faults=tuple(
            dict.fromkeys(
                fault for attempt in search.runs for fault in attempt.run.processes.faults
            )
        ),
        interrupted=search.interrupted,
        micro_steps=summary.micro_steps if summary is not None else False,
    )
