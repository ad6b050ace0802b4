"""The untouched program and the plan, run in turn on the same machine at the same time of day.

Both start at once and pause at a gate between two steps. Then A warms up while B is suspended, and
the other way round, and so on with each window. Drifts (clocks, neighbours, temperature) affect
both. They measure the same steps, whose batches may differ in size.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.measuring import trial
from flatout.measuring.outcome import Outcome
from flatout.measuring.trial import POLL_S, Bench
from flatout.nouns.plan import PlannedBoost
from flatout.probing import neighbours
from flatout.running.one.records import Process, Processes
from flatout.running.one.trial_process import TrialProcess
from flatout_agent import wire

WARM_S = 1.5
"""The most seconds a program warms up before its first window: pairs even out the rest."""
FEW_STEPS = 20
"""The program as written warms up for as many steps as the plan if these are few or took no longer
than `WARM_S`: a cache that fills takes an epoch."""
MOST_DISTURBED = 5
"""After so many disturbed pairs, another would be disturbed too."""
LATE, LATE_SHARE = 3.0, 0.1
"""A step that takes this many times the usual in both programs holds something else, such as an
evaluation of parts of the model, if at most this share of the steps does. Not where a device lags
behind the host: there a step takes long in which the host waits for the work of those before."""
PairDone = Callable[[int, float | None], None]
Plans = tuple[tuple[PlannedBoost, ...], tuple[PlannedBoost, ...]]
"""What is on in the first of two programs, and in the second."""
Unclear = Callable[[tuple[float, ...]], bool]


class DuelFailedError(Exception):
    """One of the two did not reach its windows; the message tells why."""

    def __init__(self, reason: str, of_plan: bool = False) -> None:
        """of_plan: the program fails with the plan, and as written it went as far without."""
        super().__init__(reason)
        self.of_plan = of_plan


class EndedEarlyError(DuelFailedError):
    """The program ended before all windows were measured."""

    def __init__(self, reason: str, failed: bool) -> None:
        """failed: it ended with an error, and not because it is short."""
        super().__init__(reason)
        self.failed = failed


@dataclass(frozen=True)
class Side:
    """One of the two programs over all its windows."""

    windows_ms: tuple[float, ...]
    """Step time in each window."""
    losses: tuple[float | None, ...]
    process: Process
    disturbed: tuple[bool, ...] = ()
    """Whether other programs took cores from it in each window; empty if that was not looked at."""
    redrawn: tuple[tuple[float | None, ...], ...] = ()
    """Losses of further runs as written, each with other random numbers from its second step on."""
    whole_ms: float | None = None
    """Time from step to step on average, evaluation and all, or None if no step was measured."""


class _Player:
    """A started program, held at its gates."""

    def __init__(self, program: TrialProcess, lags: bool = False) -> None:
        """lags: its device lags behind the host, so no step's own time says what it holds."""
        self.program, self._lags = program, lags
        self.processes = Processes()
        self.disturbed: list[bool] = []
        """Whether other programs took cores from it, in each window so far."""

    def collect(self) -> None:
        for pid, record in self.program.records():
            self.processes.add(pid, record)

    def at_gate(self, number: int) -> bool:
        training = self.processes.training
        return bool(training) and all(
            process.gate is not None and process.gate.number >= number for process in training
        )

    def over(self) -> bool:
        """Whether all windows are complete; a program that ended by itself gives no more."""
        training = self.processes.training
        return bool(training) and all(
            process.ended is not None and process.ended.reason == "window" for process in training
        )

    def reach(self, number: int, last: bool, deadline: float) -> None:
        """Let it run until it waits at gate `number` (or has ended, after the last window)."""
        while not (self.over() if last else self.at_gate(number)):
            self.collect()
            if time.monotonic() > deadline:
                raise DuelFailedError("the time limit was reached")
            if not self.program.alive and not self.over():
                self.collect()
                if self.over() if last else self.at_gate(number):
                    return
                tail = " ".join(self.program.log_tail(3)).strip()
                reason = f"the program ended early{': ' if tail else ''}{tail}"
                raise EndedEarlyError(reason, failed=self.failed)
            time.sleep(POLL_S)

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return bool(self.program.returncode)

    def play(self, number: int, last: bool, deadline: float, steps: int | None = None) -> None:
        """Run window `number`, of so many steps if given, while the other is suspended."""
        stretch = neighbours.Stretch(lambda: self.program.cpu_s() + time.process_time())
        self.go_on(number, last, deadline, steps)
        # A program that has ended no longer tells what it used.
        self.disturbed.append(self.program.alive and stretch.disturbed())
        if not last:
            self.program.suspend()

    def go_on(self, number: int, last: bool, deadline: float, told: int | None = None) -> None:
        """Let it through gate `number`, up to the next one; told: the number in the gate."""
        self.program.resume()
        self._open("" if told is None else str(told))
        self.reach(number + 1, last, deadline)

    def _open(self, text: str) -> None:
        """Open the gates at which it waits."""
        for process in self.processes.training:
            if process.gate is not None:
                gate = Path(process.gate.path)
                written = gate.with_suffix(".text")
                written.write_text(text, encoding="utf-8")
                written.replace(gate)  # appears at once, content included

    def end(self, deadline: float) -> None:
        """Let it end at its gate: no more windows are needed."""
        self.program.resume()
        self._open(wire.LAST_GATE)
        self.reach(0, True, deadline)

    @property
    def steps(self) -> list[wire.StepTaken]:
        """The steps of its leading process so far."""
        return self.processes.leading.steps if self.processes.leading is not None else []

    def window_steps(self, number: int) -> int | None:
        """How many steps window `number` had, or None if it had none."""
        return sum(s.phase == "window" and s.window == number for s in self.steps) or None

    def late_steps(self) -> set[int]:
        """The indices of rare steps that take far longer than the others."""
        if self._lags or not self.steps:
            return set()
        usual_s = statistics.median(step.train_s for step in self.steps)
        late = {step.index for step in self.steps if step.train_s > LATE * usual_s}
        return late if len(late) <= LATE_SHARE * len(self.steps) else set()

    def side(self, without: set[int], count: int) -> Side:
        """The figures of its first `count` windows, without these steps."""
        leading = self.processes.leading
        if leading is None:
            raise DuelFailedError("no step was taken")
        windows: dict[int, list[wire.StepTaken]] = {}
        for step in leading.steps:
            if step.phase == "window":
                windows.setdefault(step.window, []).append(step)
        means = []
        for _, steps in sorted(windows.items()):
            usual = [step for step in steps if step.index not in without] or steps
            means.append(1000 * statistics.mean(step.train_s for step in usual))
        disturbed = tuple(self.disturbed[:count])
        losses, whole_ms = leading.losses, _whole_ms(leading)
        return Side(tuple(means[:count]), losses, leading, disturbed, whole_ms=whole_ms)


def fight(
    bench: Bench,
    boosts: tuple[PlannedBoost, ...],
    facts: wire.JobFacts | None,
    pairs: int,
    limit_s: float,
    on_pair: PairDone = lambda pair, ratio: None,
    against: tuple[PlannedBoost, ...] = (),
    most: int | None = None,
    unclear: Unclear = lambda ratios: False,
    name: str = "duel",
) -> tuple[Side, Side]:
    """The program under `against` (empty: as written) and under `boosts`, `pairs` windows each.

    name: begins the names of the two trials' folders; each duel has its own.
    While the ratios of the undisturbed pairs are `unclear`, there are up to `most` pairs, as time
    allows.
    A suspended program keeps its device memory: if the device is crowded, each window runs in its
    own process. So it does if one of them fails: there may be no room for both. Raises
    DuelFailedError if one of them fails then.
    """
    deadline = time.monotonic() + limit_s
    plans = (against, boosts)
    if not bench.crowded:
        most = max(pairs, most or pairs)
        try:
            return _in_turn(bench, name, plans, facts, pairs, most, deadline, on_pair, unclear)
        except EndedEarlyError as error:
            if error.of_plan or not error.failed:
                raise
        name = f"{name}-alone"
    left_s = deadline - time.monotonic()
    return _one_after_another(bench, name, plans, facts, pairs, left_s, on_pair, {})


def _in_turn(
    bench: Bench,
    name: str,
    plans: Plans,
    facts: wire.JobFacts | None,
    pairs: int,
    most: int,
    deadline: float,
    on_pair: PairDone,
    unclear: Unclear,
) -> tuple[Side, Side]:
    """Both are there from start to end, and one of them runs."""
    ratios: list[float] = []
    lags = facts is not None and facts.device != "cpu"
    with ExitStack() as stack:
        players: list[_Player] = []
        for side, plan in zip(("without", "with"), plans, strict=True):
            folder, warm_s = f"{name}-{side}", WARM_S
            program = bench.program(folder, plan, facts, None, gates=most, warmup_max_s=warm_s)
            players.append(_Player(stack.enter_context(program), lags))
        for player in players:  # both start at once: most of a start is single-threaded
            player.reach(wire.FIRST_GATE, False, deadline)
            player.program.suspend()
        _warm_up(players, deadline)
        try:
            _windows(players, ratios, pairs, most, deadline, on_pair, unclear)
        except EndedEarlyError as error:
            # As written the program has taken these steps. A device may have no room for both.
            error.of_plan = players[1].failed and not lags
            if error.of_plan or len(ratios) < pairs:
                raise
        except DuelFailedError:
            if not ratios:
                raise
        return _sides(players, len(ratios))


def _warm_up(players: list[_Player], deadline: float) -> None:
    """In turn: steps of both at once would take several times as long.

    The program as written warms up for as many steps as the plan, if that is no long wait.
    """
    untouched, plan = players
    plan.go_on(wire.FIRST_GATE, False, deadline)
    plan.program.suspend()
    last = plan.steps[-1].index if plan.steps else 0
    warm_s = sum(step.wall_s for step in plan.steps[1:])
    told = last if last <= FEW_STEPS or warm_s <= WARM_S else None
    untouched.go_on(wire.FIRST_GATE, False, deadline, told)
    untouched.program.suspend()


def _sides(players: list[_Player], count: int) -> tuple[Side, Side]:
    """The figures of the first `count` windows, without steps that are late in both programs."""
    untouched, plan = players
    late = untouched.late_steps() & plan.late_steps()
    return untouched.side(late, count), plan.side(late, count)


def _windows(
    players: list[_Player],
    ratios: list[float],
    pairs: int,
    most: int,
    deadline: float,
    on_pair: PairDone,
    unclear: Unclear,
) -> None:
    """Add the ratio of each pair of windows, until there are enough."""
    undisturbed: list[float] = []
    for number in range(most):
        began = time.monotonic()
        on_pair(number + 1, None)
        steps: int | None = None
        for player in players:
            player.play(number, number == most - 1, deadline, steps)
            steps = player.window_steps(number)
        untouched, plan = (side.windows_ms[number] for side in _sides(players, number + 1))
        ratios.append(untouched / plan)
        if not any(player.disturbed[number] for player in players):
            undisturbed.append(ratios[-1])
        on_pair(number + 1, ratios[-1])
        out_of_time = deadline - time.monotonic() < 2 * (time.monotonic() - began)
        settled = _settled(undisturbed, number + 1, pairs, unclear)
        if pairs <= number + 1 < most and (out_of_time or settled):
            for player in players:
                player.end(deadline)
            return


def whole_runs(
    bench: Bench,
    boosts: tuple[PlannedBoost, ...],
    facts: wire.JobFacts | None,
    pairs: int,
    limit_s: float,
    on_pair: PairDone = lambda pair, ratio: None,
    most: int | None = None,
    unclear: Unclear = lambda ratios: False,
    name: str = "whole",
) -> tuple[Side, Side]:
    """For programs too short for windows: whole runs in turn, as many pairs as fit in `limit_s`.

    Compares the mean step of each run after its warm-up. While the ratios of the pairs are
    `unclear`, there are up to `most` pairs. Raises DuelFailedError.
    """
    plans = (), boosts
    return _one_after_another(
        bench, name, plans, facts, pairs, limit_s, on_pair, WHOLE, most, unclear
    )


def _one_after_another(
    bench: Bench,
    name: str,
    plans: Plans,
    facts: wire.JobFacts | None,
    pairs: int,
    limit_s: float,
    on_pair: PairDone,
    orders: dict[str, Any],
    most: int | None = None,
    unclear: Unclear = lambda ratios: False,
) -> tuple[Side, Side]:
    """One process after another, each measured once; as many pairs as time allows."""
    deadline = time.monotonic() + limit_s
    sides: tuple[list[Outcome], list[Outcome]] = ([], [])
    disturbed: tuple[list[bool], list[bool]] = ([], [])
    undisturbed: list[float] = []
    for number in range(max(pairs, most or pairs)):
        began = time.monotonic()
        on_pair(number + 1, None)
        named = zip(sides, disturbed, ("without", "with"), plans, strict=True)
        for outcomes, taken, side, plan in named:
            left_s = deadline - time.monotonic()
            folder = f"{name}-{side}-{number + 1}"
            reseed = 0 if plan else number
            # What flatout and the programs that it has started and ended have used.
            stretch = neighbours.Stretch(lambda: sum(os.times()[:4]))
            outcome = trial.run(bench, folder, plan, facts, left_s, reseed=reseed, **orders)
            if outcome.measured is None:
                failed = bool(outcome.returncode) and not outcome.late
                error = outcome.error or "no step was measured"
                raise DuelFailedError(error, of_plan=failed and side == "with")
            outcomes.append(outcome)
            # Windows does not tell what a program that has ended used.
            taken.append(sys.platform != "win32" and stretch.disturbed())
        ratio = _step_ms(sides[0][-1]) / _step_ms(sides[1][-1])
        if not any(taken[-1] for taken in disturbed):
            undisturbed.append(ratio)
        on_pair(number + 1, ratio)
        out_of_time = deadline - time.monotonic() < 1.2 * (time.monotonic() - began)
        if out_of_time or _settled(undisturbed, number + 1, pairs, unclear):
            break
    return _combined(sides[0], disturbed[0]), _combined(sides[1], disturbed[1])


def _settled(undisturbed: list[float], taken: int, pairs: int, unclear: Unclear) -> bool:
    """Whether no more pairs are needed, or too many of those taken were disturbed."""
    if taken - len(undisturbed) >= MOST_DISTURBED:
        return True
    return len(undisturbed) >= pairs and not unclear(tuple(undisturbed))


WHOLE: dict[str, Any] = {"min_steps": 10**9, "max_steps": 10**9}


def _step_ms(outcome: Outcome) -> float:
    assert outcome.measured is not None
    return outcome.measured.step_ms


def _combined(outcomes: list[Outcome], disturbed: list[bool]) -> Side:
    losses = [outcome.measured.losses for outcome in outcomes if outcome.measured is not None]
    process = outcomes[0].process
    assert process is not None
    windows_ms, redrawn = tuple(map(_step_ms, outcomes)), tuple(losses[1:])
    return Side(windows_ms, losses[0], process, tuple(disturbed), redrawn, _whole_ms(process))


def _whole_ms(process: Process) -> float | None:
    times = [step.wall_s for step in process.steps if step.phase == "window"]
    return 1000 * statistics.mean(times) if times else None
