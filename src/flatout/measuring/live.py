"""The records of a live tuning, collected while the program runs or afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flatout.knowledge import boosts as known
from flatout.measuring.trial import (
    MEMORY_EVERY_S,
    OWN_EXIT_S,
    POLL_S,
    QUIET_EXIT_S,
    Bench,
    why_unmeasured,
)
from flatout.nouns import units
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Guard, Measurement, StepBlock, Trial, Verdict
from flatout.running.one.records import Process, Processes
from flatout.running.one.trial_process import LOG, TrialProcess
from flatout_agent import wire

TOO_WIDE = 2.0
"""Where the ends of an interval around 1 are so many times apart, its middle says nothing."""
AS_WRITTEN = "as written"
"""Names the row of the program without boosts."""
DRIFT = 1.25
"""Figures of the same program that are further apart are told together."""
TAKEN_OUT = ("dropped", "failed")
"""Verdicts after which a boost that was kept is kept no longer."""
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
    """One process that was tuned while it trained, as far as recorded."""

    def __init__(self) -> None:
        self.processes = Processes()
        self.pid: int | None = None
        """The id of the deciding process; the others follow it."""

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
        """The program's facts: those of the deciding process if it has recorded them."""
        candidates = [process.facts for process in self.processes.all if process.facts is not None]
        return self._deciding.facts or next(iter(candidates), None)

    @property
    def decisions(self) -> list[wire.Decided]:
        """The decisions, in the order in which they were made."""
        return self._deciding.decisions

    @property
    def blocks(self) -> list[StepBlock]:
        """The blocks, in the order in which they ran."""
        return [StepBlock(run.step, run.steps, run.ms, run.on) for run in self._deciding.blocks]

    @property
    def summary(self) -> wire.LiveSummary | None:
        """The last recorded state of the tuning."""
        return self._deciding.live

    @property
    def ended(self) -> wire.Ended | None:
        """The last record of the deciding process."""
        return self._deciding.ended

    @property
    def speedup(self) -> float | None:
        """The step time as written over that with the kept boosts, within this run."""
        summary = self.summary
        if summary is None or not summary.written_ms or not summary.now_ms:
            return None
        return summary.written_ms / summary.now_ms


def of(records: Iterable[tuple[int, wire.Record]]) -> LiveRun:
    """The run from all its records."""
    run = LiveRun()
    for pid, record in records:
        run.add(pid, record)
    return run


def planned(run: LiveRun, before: Sequence[PlannedBoost] = ()) -> tuple[PlannedBoost, ...]:
    """The kept boosts, each with its gain beside the others if it was measured alone.

    before: the boosts kept when this process started.
    """
    boosts = {boost.id: boost for boost in before}
    for decision in run.decisions:
        if decision.verdict in TAKEN_OUT:
            boosts.pop(decision.id, None)
        elif decision.verdict == "kept":
            earlier = boosts.pop(decision.id, None)
            gain = None if decision.together else decision.gain
            gain = gain or (earlier.gain if earlier is not None else None)
            risk = known.get(decision.id).risk.value
            boosts[decision.id] = PlannedBoost(decision.id, decision.params, gain, risk)
    summary = run.summary
    if summary is not None and summary.settled:  # a plan that no longer holds is not recorded
        kept_ids = {order.id for order in summary.kept}
        boosts = {boost_id: boost for boost_id, boost in boosts.items() if boost_id in kept_ids}
    return tuple(boosts.values())


def measured_alone(run: LiveRun) -> tuple[str, ...]:
    """The kept boosts that were compared alone."""
    return tuple(d.id for d in run.decisions if d.verdict == "kept" and not d.together)


def trial(decision: wire.Decided, on: Sequence[str]) -> Trial:
    """The row of one decision. on: the boosts kept at that time."""
    guard = None
    if decision.gradient_error is not None:
        guard = Guard(
            decision.verdict != "different",
            decision.reason,
            gradient_error=decision.gradient_error,
            batch_noise=decision.batch_noise,
            own_noise=decision.own_noise,
        )
    measured = None
    if decision.step_ms is not None:
        measured = Measurement(decision.step_ms, None, (), (), compile_s=decision.compile_s)
    return Trial(
        boosts=(*(boost for boost in on if boost != decision.id), decision.id),
        tried=decision.id,
        params=decision.params,
        verdict=VERDICTS.get(decision.verdict, Verdict.SKIPPED),
        reason=decision.reason,
        measured=measured,
        gain=None if decision.together else _gain(decision),
        guard=guard,
        wall_s=decision.cost_s,
        retried=decision.again,
        interval=None if decision.together else _interval(decision),
        pairs=decision.pairs,
        why_untried=decision.why_untried,
    )


def whole(decision: wire.Decided, on: Sequence[str]) -> Trial:
    """The row of several boosts that were kept together. on: the boosts kept before."""
    row = trial(decision, on)
    names = ", ".join(decision.together)
    return replace(
        row,
        boosts=(*on, *decision.together),
        tried=None,
        params={},
        reason=f"{names}; {decision.reason}",
        gain=_gain(decision),
        interval=_interval(decision),
    )


def _gain(decision: wire.Decided) -> float | None:
    """None where the pairs are too noisy to say: the middle of such an interval says nothing."""
    return None if _is_too_noisy(decision) else decision.gain


def _is_too_noisy(decision: wire.Decided) -> bool:
    low, high = decision.low, decision.high
    return low is not None and high is not None and low < 1 < high and high > TOO_WIDE * low


def _interval(decision: wire.Decided) -> tuple[float, float] | None:
    if decision.low is None or decision.high is None or _is_too_noisy(decision):
        return None
    return decision.low, decision.high


def rows(run: LiveRun, before: Sequence[str] = ()) -> list[Trial]:
    """A row for each decision, in the order in which they were made.

    If several boosts were kept together, a row for all of them comes before theirs.
    """
    on = list(before)
    trials = []
    group: tuple[str, ...] = ()
    for decision in run.decisions:
        if decision.together and decision.together != group:
            trials.append(whole(decision, on))
        group = decision.together
        trials.append(trial(decision, on))
        follow(on, decision)
    return trials


def follow(on: list[str], decision: wire.Decided) -> None:
    """Bring the ids of the kept boosts up to date with a decision."""
    if decision.verdict == "kept" and decision.id not in on:
        on.append(decision.id)
    if decision.verdict in TAKEN_OUT and decision.id in on:
        on.remove(decision.id)


def last_word(trials: Sequence[Trial]) -> list[Trial]:
    """The last of all rows on the same boost with the same parameters."""
    words: dict[str, Trial] = {}
    for row in trials:
        key = f"{row.tried or row.boosts} {row.params}"
        words.pop(key, None)
        words[key] = row
    return list(words.values())


def guard(run: LiveRun) -> Guard | None:
    """The guard's verdict on all kept boosts together."""
    summary = run.summary
    if summary is None or summary.guard_passed is None:
        return None
    return Guard(
        summary.guard_passed,
        summary.guard,
        gradient_error=summary.gradient_error,
        batch_noise=summary.batch_noise,
        own_noise=summary.own_noise,
        gradient_compared=summary.gradient_error is not None,
    )


def as_written(run: LiveRun) -> Trial | None:
    """The row of the program as written."""
    measured = written(run)
    if measured is None:
        return None
    return Trial((), None, verdict=Verdict.KEPT, reason=AS_WRITTEN, measured=measured)


def written(run: LiveRun) -> Measurement | None:
    """The program as written, as this run measured it."""
    summary = run.summary
    if summary is None or summary.written_ms is None:
        return None
    steps = tuple(block.ms for block in run.blocks if not block.on)
    return Measurement(
        summary.written_ms,
        None,
        steps,
        (),
        wait_share=run.facts.wait_share if run.facts is not None else None,
        peak_bytes=run.ended.peak_bytes if run.ended is not None else None,
    )


@dataclass(frozen=True)
class FinishedTuning:
    """A finished throw-away process under live tuning."""

    run: LiveRun
    error: str | None
    """Why it gave no measurement, or None if it gave one."""
    returncode: int | None
    log: str
    wall_s: float
    late: bool = False
    """Whether it gave no measurement because it was stopped at its time limit."""
    start_s: float = 0.0
    """Seconds from the process's start to its first step."""

    @property
    def process(self) -> Process | None:
        """The leading training process, or None if no process took a step."""
        return self.run.processes.leading

    @property
    def torch_seen(self) -> bool:
        """Whether any process imported torch."""
        return self.run.processes.torch_seen

    @property
    def agent_seen(self) -> bool:
        """Whether any process loaded the agent."""
        return bool(self.run.processes.all)

    @property
    def backwards(self) -> int:
        """Backward passes of a program that took no step."""
        return self.run.processes.backwards

    @property
    def children(self) -> int:
        """The number of processes that the program started itself."""
        return self.run.processes.children


def run(
    bench: Bench,
    name: str,
    boosts: Sequence[PlannedBoost],
    facts: wire.JobFacts | None,
    orders: wire.LiveOrders,
    limit_s: float,
    live_run: LiveRun,
    on_record: Callable[[wire.Record], None] = lambda record: None,
) -> FinishedTuning:
    """Tune in a separate process until all is decided, it ends, or the limit is reached.

    Its records are added to `live_run` at once, so that an interrupt loses nothing.
    """
    began = time.monotonic()
    with bench.program(name, tuple(boosts), facts, live=orders) as program:
        late = _follow(program, live_run, on_record, began + limit_s)
        returncode = program.returncode
        program.stop()
        for pid, record in program.records():
            live_run.add(pid, record)
        error = _error(live_run, program, late, limit_s, returncode)
    return FinishedTuning(
        live_run,
        error,
        returncode,
        str(bench.folder / name / LOG),
        time.monotonic() - began,
        late=late and error is not None,
        start_s=max(0.0, (live_run.processes.first_step_at or began) - began),
    )


def _follow(
    program: TrialProcess,
    live_run: LiveRun,
    on_record: Callable[[wire.Record], None],
    deadline: float,
) -> bool:
    """Read records until the process ends; True if it was still running at the deadline."""

    def collect() -> None:
        for pid, record in program.records():
            live_run.add(pid, record)
            if pid == live_run.pid:
                on_record(record)

    sampled = 0.0
    while program.alive and live_run.ended is None:
        collect()
        now = time.monotonic()
        if now > deadline:
            return True
        if now - sampled > MEMORY_EVERY_S:
            program.memory_bytes()
            sampled = now
        time.sleep(POLL_S)
    settled = live_run.summary is not None and live_run.summary.settled
    program.wait(QUIET_EXIT_S if settled else min(OWN_EXIT_S, deadline - time.monotonic()))
    collect()
    return False


def _error(
    live_run: LiveRun, program: TrialProcess, late: bool, limit_s: float, returncode: int | None
) -> str | None:
    """Why the program as written is not known, or None if it is."""
    if live_run.facts is not None:
        return None
    steps = max((process.step_count for process in live_run.processes.all), default=0)
    return why_unmeasured(program, late, limit_s, returncode, steps)


def steps_of(tried: FinishedTuning) -> int | None:
    """Steps of a whole run of the program, if this one ran to its end."""
    ended = tried.run.ended
    settled = tried.run.summary is not None and tried.run.summary.settled
    return ended.steps if ended is not None and not settled else None


def drift_note(written_ms: Mapping[str, float | None]) -> list[str]:
    """What each step time of the program as written is, where they are far apart.

    written_ms: these, or None if unknown, by when they were measured.
    """
    known_ms = {when: ms for when, ms in written_ms.items() if ms is not None}
    if max(known_ms.values()) <= DRIFT * min(known_ms.values()):
        return []
    told = ", ".join(f"{units.milliseconds(ms)} {when}" for when, ms in known_ms.items())
    return [f"the machine's speed changed: as written {told}; gains compare neighbouring steps"]
