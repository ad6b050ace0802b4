"""What the agent of a live tuning tells, put together while the program runs or afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flatout.knowledge import boosts as known
from flatout.measuring.trial import (
    MEMORY_EVERY_S,
    OWN_EXIT_S,
    POLL_S,
    QUIET_EXIT_S,
    Bench,
    why_unmeasured,
)
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Block, Guard, Measured, Trial, Verdict
from flatout.running.process import LOG, Program
from flatout.running.processes import Process, Processes
from flatout_agent import wire

VERDICTS = {
    "kept": Verdict.KEPT,
    "slower": Verdict.SLOWER,
    "same": Verdict.SLOWER,
    "dropped": Verdict.SLOWER,
    "different": Verdict.DIFFERENT,
    "failed": Verdict.FAILED,
    "declined": Verdict.SKIPPED,
    "untried": Verdict.SKIPPED,
}


class LiveRun:
    """One process that was tuned while it trained, as far as it has told."""

    def __init__(self) -> None:
        self.processes = Processes()
        self.pid: int | None = None
        """The process that decides; the others follow it."""

    def add(self, pid: int, record: wire.Record) -> None:
        """Account for one record."""
        self.processes.add(pid, record)
        if self.pid is None and isinstance(record, (wire.Decided, wire.BlockRun, wire.LiveSummary)):
            self.pid = pid

    @property
    def _deciding(self) -> Process:
        return self.processes.of(self.pid) or Process()

    @property
    def facts(self) -> wire.JobFacts | None:
        """What is known of the program, by the process that decides where it has said so."""
        known = [item.facts for item in self.processes.all if item.facts is not None]
        return self._deciding.facts or next(iter(known), None)

    @property
    def decisions(self) -> list[wire.Decided]:
        """In the order in which they fell."""
        return self._deciding.decisions

    @property
    def blocks(self) -> list[Block]:
        """In the order in which they ran."""
        return [Block(run.step, run.steps, run.ms, run.on) for run in self._deciding.blocks]

    @property
    def summary(self) -> wire.LiveSummary | None:
        """Where the tuning stands, as last told."""
        return self._deciding.live

    @property
    def ended(self) -> wire.Ended | None:
        """The last record of the process that decides."""
        return self._deciding.ended

    @property
    def speedup(self) -> float | None:
        """Time of a step as written over its time with what is kept, within this run."""
        summary = self.summary
        if summary is None or not summary.written_ms or not summary.now_ms:
            return None
        return summary.written_ms / summary.now_ms


def of(records: Iterable[tuple[int, wire.Record]]) -> LiveRun:
    """From all the records of a run."""
    run = LiveRun()
    for pid, record in records:
        run.add(pid, record)
    return run


def planned(run: LiveRun, before: Sequence[PlannedBoost] = ()) -> tuple[PlannedBoost, ...]:
    """The boosts that are kept, with the gain that each was measured to bring.

    before: those that were kept in earlier processes of the same tuning.
    """
    kept = {boost.id: boost for boost in before}
    for decided in run.decisions:
        known_before = (
            kept.pop(decided.id, None) if decided.verdict in ("kept", "dropped") else None
        )
        if decided.verdict == "kept":
            gain = decided.gain or (known_before.gain if known_before is not None else None)
            risk = known.get(decided.id).risk.value
            kept[decided.id] = PlannedBoost(decided.id, decided.params, gain, risk)
    if run.summary is not None and run.summary.settled:  # the plan did not hold: nothing was told
        still = {order.id for order in run.summary.kept}
        kept = {boost_id: boost for boost_id, boost in kept.items() if boost_id in still}
    return tuple(kept.values())


def trial(decided: wire.Decided, on: Sequence[str]) -> Trial:
    """The row of one decision. on: what was kept then."""
    guard = None
    if decided.gradient_error is not None:
        guard = Guard(
            decided.verdict != "different",
            decided.reason,
            gradient_error=decided.gradient_error,
            batch_noise=decided.batch_noise,
            own_noise=decided.own_noise,
        )
    measured = None
    if decided.step_ms is not None:
        measured = Measured(decided.step_ms, None, (), (), compile_s=decided.compile_s)
    known_interval = decided.low is not None and decided.high is not None
    return Trial(
        boosts=(*(boost for boost in on if boost != decided.id), decided.id),
        tried=decided.id,
        params=decided.params,
        verdict=VERDICTS.get(decided.verdict, Verdict.SKIPPED),
        reason=decided.reason,
        measured=measured,
        gain=decided.gain,
        guard=guard,
        wall_s=decided.cost_s,
        retried=decided.again,
        interval=(decided.low or 0.0, decided.high or 0.0) if known_interval else None,
        pairs=decided.pairs,
        why_untried=decided.why_untried,
    )


def rows(run: LiveRun, before: Sequence[str] = ()) -> list[Trial]:
    """A row for each decision, in the order in which they fell."""
    on = list(before)
    found = []
    for decided in run.decisions:
        found.append(trial(decided, on))
        if decided.verdict == "kept" and decided.id not in on:
            on.append(decided.id)
        if decided.verdict == "dropped" and decided.id in on:
            on.remove(decided.id)
    return found


def guard(run: LiveRun) -> Guard | None:
    """The guard's word on all that is kept together."""
    summary = run.summary
    if summary is None or summary.guard_passed is None:
        return None
    return Guard(
        summary.guard_passed,
        summary.guard,
        gradient_error=summary.gradient_error,
        batch_noise=summary.batch_noise,
        gradient_compared=summary.gradient_error is not None,
    )


def as_written(run: LiveRun) -> Trial | None:
    """The row of the program as written."""
    measured = written(run)
    if measured is None:
        return None
    return Trial((), None, verdict=Verdict.KEPT, reason="as written", measured=measured)


def written(run: LiveRun) -> Measured | None:
    """The program as written, as this run measured it."""
    summary = run.summary
    if summary is None or summary.written_ms is None:
        return None
    steps = tuple(block.ms for block in run.blocks if not block.on)
    return Measured(
        summary.written_ms,
        None,
        steps,
        (),
        wait_share=run.facts.wait_share if run.facts is not None else None,
        peak_bytes=run.ended.peak_bytes if run.ended is not None else None,
    )


@dataclass(frozen=True)
class Tried:
    """A throw-away process under a live tuning, over."""

    run: LiveRun
    error: str | None
    """Why it told nothing; None: it did."""
    returncode: int | None
    log: str
    wall_s: float
    late: bool = False
    """It told nothing because it was stopped at its time limit."""
    start_s: float = 0.0
    """From the process's start to its first step."""

    @property
    def process(self) -> Process | None:
        """The leading training process; None: no step was taken anywhere."""
        return self.run.processes.leading

    @property
    def torch_seen(self) -> bool:
        """Some process imported torch."""
        return self.run.processes.torch_seen

    @property
    def agent_seen(self) -> bool:
        """Some process loaded the agent."""
        return bool(self.run.processes.all)


def run(
    bench: Bench,
    name: str,
    boosts: Sequence[PlannedBoost],
    facts: wire.JobFacts | None,
    orders: wire.LiveOrders,
    limit_s: float,
    found: LiveRun,
    told: Callable[[wire.Record], None] = lambda record: None,
) -> Tried:
    """Tune in a process of its own until all is decided, it ends, or the limit is reached.

    What it tells is put into `found` at once, so that an interrupt loses nothing.
    """
    began = time.monotonic()
    with bench.program(name, tuple(boosts), facts, live=orders) as program:
        late = _follow(program, found, told, began + limit_s)
        returncode = program.returncode
        program.stop()
        for pid, record in program.records():
            found.add(pid, record)
        error = _error(found, program, late, limit_s, returncode)
    return Tried(
        found,
        error,
        returncode,
        str(bench.folder / name / LOG),
        time.monotonic() - began,
        late=late and error is not None,
        start_s=max(0.0, (found.processes.first_step_at or began) - began),
    )


def _follow(
    program: Program,
    found: LiveRun,
    told: Callable[[wire.Record], None],
    deadline: float,
) -> bool:
    """Read records until the process has ended; True: it was still at it at the deadline."""

    def collect() -> None:
        for pid, record in program.records():
            found.add(pid, record)
            if pid == found.pid:
                told(record)

    sampled = 0.0
    while program.alive and found.ended is None:
        collect()
        now = time.monotonic()
        if now > deadline:
            return True
        if now - sampled > MEMORY_EVERY_S:
            program.memory_bytes()
            sampled = now
        time.sleep(POLL_S)
    settled = found.summary is not None and found.summary.settled
    program.wait(QUIET_EXIT_S if settled else min(OWN_EXIT_S, deadline - time.monotonic()))
    collect()
    return False


def _error(
    found: LiveRun, program: Program, late: bool, limit_s: float, returncode: int | None
) -> str | None:
    """Why the program as written is not known; None: it is."""
    if found.facts is not None:
        return None
    steps = max((process.step_count for process in found.processes.all), default=0)
    return why_unmeasured(program, late, limit_s, returncode, steps)


def steps_of(tried: Tried) -> int | None:
    """Steps of a whole run of the program, where this one came to its own end."""
    ended = tried.run.ended
    settled = tried.run.summary is not None and tried.run.summary.settled
    return ended.steps if ended is not None and not settled else None
