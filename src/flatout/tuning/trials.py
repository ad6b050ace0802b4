"""Try boosts in throw-away processes that are tuned while they train; what was found is kept.

One process tries all that can be switched in a running program. A program that ends before all is
decided is started again with what was kept on, until everything has its verdict, the budget is used
up, or a whole run of it decides nothing more.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from flatout.knowledge import boosts as known
from flatout.measuring import live
from flatout.measuring.live import LiveRun, Tried
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Observer
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Block, Guard, Measured, Trial, Verdict
from flatout.tuning import unmeasurable
from flatout.tuning.candidates import Choice, skip
from flatout_agent import wire

CONFIRM_SHARE = 0.25
"""Of the budget, held back for the confirmation, at most ..."""
CONFIRM_S = 60.0
"""... so many seconds."""
HANG_S = 120.0
"""A process may outlive its own budget by so long (a compilation, a long step), not more."""


@dataclass(frozen=True)
class Found:
    """What the throw-away processes found."""

    facts: wire.JobFacts
    written: Measured
    """The program as written."""
    kept: tuple[PlannedBoost, ...] = ()
    trials: tuple[Trial, ...] = ()
    blocks: tuple[Block, ...] = ()
    guard: Guard | None = None
    noise: float = 0.0
    now_ms: float | None = None
    """Step time with all that is kept."""
    run_steps: int | None = None
    """Steps of a whole run, where one came to its end."""
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
        """Step time as written over step time with what is kept, by neighbouring blocks."""
        gains = [boost.gain for boost in self.kept if boost.gain]
        product = 1.0
        for gain in gains:
            product *= gain
        return product if gains else None

    @property
    def tried(self) -> bool:
        """Whether any boost got its fair try, or none applies to this program."""
        left = [row for row in self.trials if row.left]
        return not left or any(row.pairs or row.guard is not None for row in self.trials)


@dataclass
class _Sum:
    """The processes so far."""

    kept: tuple[PlannedBoost, ...] = ()
    rows: list[Trial] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    runs: list[Tried] = field(default_factory=list)
    first: LiveRun | None = None
    interrupted: bool = False


def find(
    bench: Bench, choice: Choice, observer: Observer, deadline: float, steps_left: int | None
) -> Found:
    """Raises UserError where the program as written cannot be measured, KeyboardInterrupt where
    it was interrupted before that.
    """
    allowed, refused = _allowed(choice)
    total = _Sum()
    observer.phase("switching boosts on and off in a running program")
    while True:
        try:
            tried = _one(bench, total, allowed, observer, deadline, steps_left)
        except KeyboardInterrupt:
            if total.first is None or total.first.facts is None:
                raise
            total.interrupted = True
            break
        if total.first is None or not tried.run.blocks or _over(tried, total, deadline):
            break
        steps_left = steps_left or live.steps_of(tried)
    for row in refused:
        observer.finished(row)
    return _found(total, refused)


def _allowed(choice: Choice) -> tuple[tuple[str, ...], list[Trial]]:
    reasons = {boost.id: choice.refuses(boost) for boost in known.every()}
    allowed = tuple(boost for boost, reason in reasons.items() if reason is None)
    return allowed, [skip((), boost, reason) for boost, reason in reasons.items() if reason]


def _one(
    bench: Bench,
    total: _Sum,
    allowed: tuple[str, ...],
    observer: Observer,
    deadline: float,
    steps_left: int | None,
) -> Tried:
    """One more process; raises UserError where the first one gives no measurement."""
    left_s = max(0.0, deadline - time.monotonic())
    budget_s = left_s - min(CONFIRM_S, CONFIRM_SHARE * left_s)
    orders = wire.LiveOrders(
        allowed=allowed,
        settled=tuple(row.tried for row in total.rows if row.tried and not row.left),
        steps=steps_left,
        budget_s=budget_s,
        stop=True,
        seed=bench.seed + len(total.runs),
    )
    run = LiveRun()
    on = [boost.id for boost in total.kept]
    shown = _Shown(observer, run, on, total.first is not None)
    facts = total.first.facts if total.first is not None else None
    name = f"live-{len(total.runs) + 1}"
    observer.started(None, {}, len(total.runs) + 1, None)
    if total.first is None:
        total.first = run
    try:
        tried = live.run(bench, name, total.kept, facts, orders, left_s + HANG_S if budget_s > 30
                         else left_s, run, shown)  # fmt: skip
    finally:
        _add(total, run)
    total.runs.append(tried)
    if run.facts is None or live.written(run) is None:
        if len(total.runs) == 1:
            raise unmeasurable.why(tried)
        total.runs.pop()
    return tried


def _add(total: _Sum, run: LiveRun) -> None:
    on = [boost.id for boost in total.kept]
    fresh = live.rows(run, on)
    total.rows = [row for row in total.rows if row.verdict is not Verdict.SKIPPED or not row.left]
    total.rows += [row for row in fresh if row.tried not in on or row.verdict is not Verdict.KEPT]
    total.kept = live.planned(run, total.kept)
    last = total.blocks[-1].step if total.blocks else 0
    total.blocks += [dataclasses.replace(block, step=last + block.step) for block in run.blocks]


def _over(tried: Tried, total: _Sum, deadline: float) -> bool:
    """Whether another process would not be worth it."""
    decided = [d for d in tried.run.decisions if d.pairs or d.gradient_error is not None]
    ended = [row for row in total.rows if row.why_untried == "program_ended"]
    return not ended or not decided or deadline - time.monotonic() < 2 * tried.wall_s


class _Shown:
    """Hands the agent's records on to the observer."""

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


def _found(total: _Sum, refused: list[Trial]) -> Found:
    first = total.first
    assert first is not None
    assert first.facts is not None
    written = live.written(first)
    assert written is not None
    last = total.runs[-1] if total.runs else None
    summary = first.summary
    ended = [steps for steps in map(live.steps_of, total.runs) if steps]
    end = last.run.summary if last is not None else summary
    return Found(
        facts=first.facts,
        written=written,
        kept=total.kept,
        trials=(*_row_as_written(first), *total.rows, *refused),
        blocks=tuple(total.blocks),
        guard=live.guard(last.run) if last is not None else None,
        noise=summary.noise or 0.0 if summary is not None else 0.0,
        now_ms=end.now_ms if end is not None else None,
        run_steps=min(ended, default=None),
        run_s=max((tried.wall_s for tried in total.runs), default=0.0),
        start_s=max((tried.start_s for tried in total.runs), default=0.0),
        redirected=tuple(
            dict.fromkeys(path for t in total.runs for path in t.run.processes.redirected)
        ),
        faults=tuple(dict.fromkeys(fault for t in total.runs for fault in t.run.processes.faults)),
        interrupted=total.interrupted,
        micro_steps=summary.micro_steps if summary is not None else False,
    )
