"""Try boosts in throw-away processes that are tuned while they train, and collect the results.

One process tries all boosts that can be switched in a running program. A program that ends too
early is started again with everything known so far, until each boost has its verdict or time is
up. The deadline is a promise: each process knows it, and the time that the confirmation needs.
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

LAST_S, ENDS_S = 1.0, 1.0
"""A process that still runs this many seconds before the deadline is ended; so many seconds earlier
it ends by itself and tells what it found."""
IDLE_RUNS = 2
"""After this many processes in a row without a decision, another would not decide either."""


@dataclass(frozen=True)
class Found:
    """The results of the throw-away processes."""

    facts: wire.JobFacts
    written: Measurement
    """Figures of the program as written."""
    kept: tuple[PlannedBoost, ...] = ()
    trials: tuple[Trial, ...] = ()
    blocks: tuple[StepBlock, ...] = ()
    guard: Guard | None = None
    noise: float = 0.0
    now_ms: float | None = None
    """Step time with all kept boosts on."""
    run_steps: int | None = None
    """Steps of a whole run, if one ran to its end."""
    start_s: float = 0.0
    """Wall time in seconds from the start of one process to its first step."""
    redirected: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    interrupted: bool = False
    micro_steps: bool = False

    @property
    def step_s(self) -> float:
        """Seconds of an optimizer step as written."""
        return _step_s(self.written.step_ms, self.micro_steps, self.facts)

    @property
    def speedup(self) -> float | None:
        """Step time as written over step time with the kept boosts, from neighbouring blocks."""
        if not self.kept or not self.now_ms:
            return None
        return self.written.step_ms / self.now_ms

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
    measured: set[str] = field(default_factory=set)
    """Kept boosts that were compared alone."""
    blocks: list[StepBlock] = field(default_factory=list)
    runs: list[FinishedTuning] = field(default_factory=list)
    first: LiveRun | None = None
    summary: wire.LiveSummary | None = None
    """The final state of the last process that measured anything."""
    interrupted: bool = False


def find(
    bench: Bench,
    choice: Allowance,
    observer: Observer,
    deadline: float,
    steps_left: int | None,
    whole_s: float = 0.0,
) -> Found:
    """Raises UserError if the program as written cannot be measured, KeyboardInterrupt if it was
    interrupted before that.

    deadline: by `time.monotonic`; the processes leave what a confirmation needs. whole_s: the time
    that the user gave for everything.
    """
    reasons = {boost.id: choice.refuses(boost) for boost in known.every()}
    allowed = tuple(boost for boost, reason in reasons.items() if reason is None)
    refusals = [skip((), boost, reason) for boost, reason in reasons.items() if reason]
    search = _Search()
    observer.phase("switching boosts on and off in a running program")
    idle = pairs = 0
    while True:
        try:
            attempt = _run_process(bench, search, allowed, observer, deadline, steps_left, whole_s)
        except KeyboardInterrupt:
            if search.first is None or search.first.facts is None:
                raise
            search.interrupted = True
            break
        before, summary = pairs, search.summary
        pairs = sum(len(each.ratios) for each in summary.compared) if summary is not None else 0
        measured = any(
            decision.pairs or decision.gradient_error is not None
            for decision in attempt.run.decisions
        )
        learned = measured or pairs > before or _blamed(attempt)
        idle = 0 if learned else idle + 1
        if idle >= IDLE_RUNS or _over(attempt, bool(search.kept), deadline, whole_s):
            break
        steps_left = steps_left or live.steps_of(attempt)
    refusals += _cut_off(search, allowed)
    for row in refusals:
        observer.finished(row)
    return _result(search, refusals)


def _cut_off(search: _Search, allowed: tuple[str, ...]) -> list[Trial]:
    """Rows of the boosts without an answer: the last process was killed, as in a compilation."""
    known_ids = {row.tried for row in search.rows} | {boost.id for boost in search.kept}
    if search.interrupted or not search.runs or search.runs[-1].run.ended is not None:
        return []
    reason = "the time was up before it could be decided"
    rows = [skip((), boost, reason) for boost in allowed if boost not in known_ids]
    return [dataclasses.replace(row, why_untried="no_time") for row in rows]


def _run_process(
    bench: Bench,
    search: _Search,
    allowed: tuple[str, ...],
    observer: Observer,
    deadline: float,
    steps_left: int | None,
    whole_s: float,
) -> FinishedTuning:
    """One more process; raises UserError if the first one gives no measurement."""
    left_s = max(0.0, deadline - time.monotonic())
    orders = _orders(search, allowed, left_s, steps_left, bench.seed + len(search.runs))
    orders = dataclasses.replace(orders, whole_s=whole_s)
    run = LiveRun()
    on = [boost.id for boost in search.kept]
    relay = _Relay(observer, run, on, search.first is not None)
    facts = search.first.facts if search.first is not None else None
    name = f"live-{len(search.runs) + 1}"
    observer.started(None, {}, len(search.runs) + 1, None)
    if search.first is None:
        search.first = run
    try:
        attempt = live.run(bench, name, search.kept, facts, orders, left_s - LAST_S, run, relay)
    finally:
        _add(search, run)
    search.runs.append(attempt)
    if len(search.runs) == 1 and (run.facts is None or live.written(run) is None):
        raise unmeasurable.why(attempt)
    return attempt


def _orders(
    search: _Search,
    allowed: tuple[str, ...],
    left_s: float,
    steps_left: int | None,
    seed: int,
) -> wire.LiveOrders:
    now = time.time()
    summary = search.summary
    orders = wire.LiveOrders(
        allowed=allowed,
        settled=tuple(row.tried for row in search.rows if row.tried and not row.left),
        alone=any(row.why_untried == "program_failed" for row in search.rows),
        steps=steps_left,
        ends_at=now + left_s - LAST_S - ENDS_S,
        started_at=now,
        stop=True,
        seed=seed,
        compared=summary.compared if summary is not None else (),
    )
    if summary is None or summary.written_ms is None or not search.kept:
        return orders
    return dataclasses.replace(
        orders,
        written_s=summary.written_ms / 1000,
        gain=summary.written_ms / summary.now_ms if summary.now_ms else 1.0,
        pairs=summary.pairs,
        measured=tuple(search.measured),
    )


def _add(search: _Search, run: LiveRun) -> None:
    rows = live.rows(run, [boost.id for boost in search.kept])
    earlier = [row for row in search.rows if row.verdict is not Verdict.SKIPPED or not row.left]
    search.rows = live.last_word([*earlier, *rows])
    search.kept = live.planned(run, search.kept)
    search.measured |= set(live.measured_alone(run))
    if run.summary is not None and run.summary.written_ms is not None:
        search.summary = run.summary
    last = search.blocks[-1].step if search.blocks else 0
    search.blocks += [dataclasses.replace(block, step=last + block.step) for block in run.blocks]


def _blamed(attempt: FinishedTuning) -> bool:
    """Whether the program failed, possibly under a boost that the next process leaves off."""
    return bool(attempt.returncode) and any(
        decision.why_untried == "program_failed" or decision.verdict == "failed"
        for decision in attempt.run.decisions
    )


def _step_s(unit_ms: float, micro_steps: bool, facts: wire.JobFacts | None) -> float:
    """Seconds of an optimizer step. micro_steps: what was timed are its micro-steps."""
    units = facts.micro_steps if micro_steps and facts is not None else 1.0
    return units * unit_ms / 1000


def _over(attempt: FinishedTuning, kept: bool, deadline: float, whole_s: float) -> bool:
    """Whether another process would gain nothing, or the time is up."""
    summary = attempt.run.summary
    settled = summary is not None and summary.settled
    if settled or (attempt.returncode and not _blamed(attempt)):
        return True
    step_s = attempt.wall_s
    if summary is not None:
        step_s = _step_s(summary.written_ms or 0.0, summary.micro_steps, attempt.run.facts)
    start_s, steps = attempt.start_s, live.steps_of(attempt)
    needed_s = start_s
    if kept:
        needed_s += wire.reserved_s(whole_s, start_s, step_s, steps)
    return deadline - time.monotonic() < needed_s + min(attempt.wall_s - start_s, 2.0)


class _Relay:
    """Passes the agent's records on to the observer."""

    def __init__(self, observer: Observer, run: LiveRun, on: list[str], written: bool) -> None:
        """written: whether the program as written already has its row."""
        self.observer, self.run, self.on, self.written = observer, run, on, written

    def __call__(self, record: wire.Record) -> None:
        if isinstance(record, wire.Decided):
            if record.together and record.together[0] == record.id:
                self.observer.finished(live.whole(record, self.on))
            elif not record.together:
                self.observer.finished(live.trial(record, self.on))
            live.follow(self.on, record)
        elif isinstance(record, wire.LiveSummary) and not self.written:
            self.written = True
            for row in _row_as_written(self.run):
                self.observer.finished(row)
        elif isinstance(record, wire.BlockRun):
            phase = " + ".join(record.on) or live.AS_WRITTEN
            self.observer.step(record.step, phase, record.ms / 1000)


def _row_as_written(run: LiveRun) -> tuple[Trial, ...]:
    row = live.as_written(run)
    return (row,) if row is not None else ()


def _result(search: _Search, refusals: list[Trial]) -> Found:
    first = search.first
    assert first is not None
    assert first.facts is not None
    summary = search.summary or first.summary
    baseline = live.written(first)
    assert baseline is not None
    if summary is not None and summary.written_ms is not None:  # as last measured
        baseline = dataclasses.replace(baseline, step_ms=summary.written_ms)
    last = search.runs[-1] if search.runs else None
    run_lengths = [steps for steps in map(live.steps_of, search.runs) if steps]
    return Found(
        facts=first.facts,
        written=baseline,
        kept=search.kept,
        trials=(*_row_as_written(first), *search.rows, *refusals),
        blocks=tuple(search.blocks),
        guard=live.guard(last.run) if last is not None else None,
        noise=summary.noise or 0.0 if summary is not None else 0.0,
        now_ms=summary.now_ms if summary is not None else None,
        run_steps=min(run_lengths, default=None),
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
