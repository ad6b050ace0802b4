"""The questions that the Guard asks of a running program, each over some units of work.

The calls of one unit give the noise between batches. The calls of the next unit are repeated: each
as soon as its gradients are available, while the weights are still those of the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Moment, Risk
from flatout_agent.job import Job
from flatout_agent.live import calls, guard
from flatout_agent.live.calls import RecordedCall
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.failed_calls import CALLED, FailedCalls, Unsound
from flatout_agent.live.frozen_calls import FrozenCalls
from flatout_agent.live.guard import NOT_COMPARED, GuardVerdict
from flatout_agent.live.judge import Judge, beside_calls
from flatout_agent.live.recorded_calls import (
    BATCH,
    COMPARE,
    GIVE,
    NOTHING,
    RecordedCalls,
    some_of_each_model,
)
from flatout_agent.live.state import Checked, Tick
from flatout_agent.live.updates import CheckedUpdates
from flatout_agent.speedups import forward_state
from flatout_agent.speedups.memory_counters import beside_the_program

WAIT_UNITS = 12
"""Units for which a check waits for calls that it can compare."""
OUR_FAULT = "a part of the check failed inside flatout"
CHECKING = ("backward", "guard", "optimizer", "step")
"""The name under which such an error is recorded."""
Use = Callable[[list[RecordedCall]], None]
Agree = Callable[[float, str], float]


class Checks:
    """Asks one question at a time, and is told of the program's calls and updates."""

    def __init__(self, job: Job, booster: Booster, unsound: Unsound, agree: Agree) -> None:
        """unsound: called with the boosts that must go, and why. agree: see `Peers.agree`."""
        self.job, self.booster, self._agree = job, booster, agree
        self.failed_calls = FailedCalls(job, booster, unsound)
        self._recorded = RecordedCalls(job, booster.recorder, self.failed_calls)
        told = self._recorded.not_comparable, self._recorded.out_of_memory
        self._judge = Judge(job, booster, unsound, *told)
        self.updates = CheckedUpdates(job, self._repeating)
        self._frozen = FrozenCalls(booster)
        self._replaying = False
        self.own_s = 0.0
        """Seconds spent on repeating calls since this was last set to zero."""
        self._verdicts: dict[int, GuardVerdict] = {}
        """By model."""
        self._faults_before = 0
        """The number of our own errors when the check began: see `_failed`."""
        self._looking = False
        """This is a later look at the kept boosts: if they are unsound, each is then checked
        alone."""
        self._use: Use = lambda calls: None
        self._delivered = False

    @property
    def replaying(self) -> bool:
        """A call is being repeated; it is not the program's own."""
        return self._replaying or self.failed_calls.replaying

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        began, self._replaying = time.perf_counter(), True
        try:
            with beside_the_program(forward_state.devices(self.job.models)):
                yield
        finally:
            self._replaying = False
            self.own_s += time.perf_counter() - began

    # What the program does ----------------------------------------------------------------------

    def call(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root model's call in training, recorded on demand."""
        if not self._recorded.purpose:
            return self.failed_calls.call(model, call, args, kwargs)
        return self._recorded.call(model, call, args, kwargs, self._judge.group)

    def frozen_call(
        self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """A call of a model that is not trained, compared on demand."""
        with ExitStack() as hooked:
            begun = self.booster.recorder.safely("guard", self._frozen.begin, model, hooked)
            output = self.failed_calls.call(model, call, args, kwargs)
        if begun is not None:
            with self._repeating():
                given = begun, model, args, kwargs, output
                self.booster.recorder.safely("guard", self._frozen.compare, *given)
        return output

    def backward_ended(self) -> None:
        """Compare if a check is under way: gradients are available and the weights unchanged."""
        if not self._recorded.purpose or self.replaying or self.job.inside_backward():
            return
        ready = self._recorded.completed()
        if self._recorded.purpose == GIVE:
            if ready:
                self._delivered = True
                self.booster.recorder.safely("give calls", self._give, ready)
            return
        ready = [recorded for recorded in ready if id(recorded.model) not in self._verdicts]
        ready = some_of_each_model(ready)
        if not ready:
            return
        with self._repeating():
            verdict = self._judge.verdict(ready)
            if self._looking and verdict is not None and not verdict.passed:
                self._judge.find_wrong(ready, verdict)
        if verdict is not None:
            self._verdicts.update({id(recorded.model): verdict for recorded in ready})

    # Calls for others ---------------------------------------------------------------------------

    def give_calls(self, use: Use) -> Generator[None, Tick, None]:
        """Hand the calls of one unit to `use`, each as soon as its gradient is available.

        They then serve as the other batch of the next check.
        """
        if self.job.device != "cpu":
            return  # nothing uses them there, and they hold memory
        self._begin([], None, None, False)
        self._recorded.begin(GIVE)
        self._use, self._delivered = use, False
        for _ in range(WAIT_UNITS):
            yield
            self._recorded.unit_ended()
            self._recorded.purpose = NOTHING if self._delivered else GIVE
            if self._agree(float(self._delivered), "min"):  # other ranks may still wait
                break
        self._recorded.purpose = NOTHING

    def _give(self, recorded: list[RecordedCall]) -> None:
        with self._repeating(), suppress(calls.OtherOutputsError):  # such calls show nothing
            self._use(recorded)

    # Before the first real step under boosts ----------------------------------------------------

    def check(self, group: Sequence[Candidate]) -> Generator[None, Tick, Checked]:
        """Wait for calls that can be compared, and say which of these boosts are sound together."""
        update = next((c for c in group if c.boost.moment is Moment.OPTIMIZER), None)
        called, frozen = _called(group)
        if any(candidate.again for candidate in called):
            self._judge.noise_floors.forget()  # the program was to change since
        if called or update is not None or frozen is not None:
            yield from self._look(called, update, frozen, False)
            checked = self._answer(called, update)
            self._end()
        else:
            checked = Checked([], {}, GuardVerdict(True, "the same samples, in the same order"))
        for candidate in group:
            if candidate.boost.moment is Moment.LOADER:  # it guarantees them by its own rules
                checked.refused.update(self._judge.switch_on([candidate]))
                self.booster.off(candidate.id)
        checked.sound = [candidate for candidate in group if candidate.id not in checked.refused]
        return checked

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, GuardVerdict]:
        """The verdict on all kept boosts, against the program as written."""
        called, frozen = _called(kept)
        if not called and frozen is None:
            return GuardVerdict(True, "nothing that is on acts on the model's calls")
        yield from self._look(called, None, frozen, True)
        verdict = self._failed() or self._worst(called)
        if verdict.passed and frozen is not None and not (called and self._frozen.verdict.passed):
            verdict = self._frozen.verdict
        self._end()
        return verdict

    def _look(
        self,
        called: list[Candidate],
        update: Candidate | None,
        frozen: Candidate | None,
        on: bool,
    ) -> Generator[None, Tick, None]:
        """Wait for an answer, and once more if it refuses something by an old measurement."""
        for second in (False, True):
            self._begin(called, update, frozen, on)
            for _ in range(WAIT_UNITS):
                yield
                if self._agree(float(self._unit_ended()), "min"):
                    break
            verdicts = [*self._judge.refused.values(), *self._verdicts.values()]
            measured = any(not v.passed and v.noise_floor is not None for v in verdicts)
            again = measured and self._judge.noise_floors.reused
            if second or not self._agree(float(again), "max"):
                return
            self._judge.noise_floors.forget()

    def _begin(
        self,
        called: Sequence[Candidate],
        update: Candidate | None,
        frozen: Candidate | None,
        on: bool,
    ) -> None:
        """Put a question on boosts of calls, of updates and of models that are not trained.

        on: the program runs under these.
        """
        self._judge.ask(called, on)
        if not called:
            self._recorded.begin(NOTHING)
        elif self._recorded.have_other_batch() or self._judge.knows_noise():
            self._recorded.begin(COMPARE)
        else:
            self._recorded.begin(BATCH)
        self.updates.ask(update)
        self._frozen.ask(frozen, on)
        self._verdicts, self._looking = {}, False
        self._faults_before = self._faults()

    def _faults(self) -> int:
        faults = self.booster.recorder.faults
        return sum(faults[place] for place in CHECKING)

    def _failed(self) -> GuardVerdict | None:
        """The verdict if a part of the check failed by our own fault: nothing is kept."""
        failed = self._faults() > self._faults_before
        return GuardVerdict(False, f"{NOT_COMPARED}{OUR_FAULT}") if failed else None

    def _end(self) -> None:
        self._begin((), None, None, False)

    def _unit_ended(self) -> bool:
        """Whether there is an answer."""
        frozen_known = self._frozen.asked is None or self._frozen.seen
        called_known = not self._recorded.purpose or bool(self._verdicts)
        if self.updates.known and frozen_known and called_known:
            return True
        self._recorded.unit_ended()
        return False

    def _answer(self, called: list[Candidate], update: Candidate | None) -> Checked:
        refused = dict(self._judge.refused)
        sound = [candidate for candidate in called if candidate.id not in refused]
        verdict = self._worst(sound)
        if not verdict.passed:  # it could not be compared: only what is exact anyway may go on
            risky = [c for c in sound if not _exact_anyway(c)]
            refused.update({candidate.id: verdict for candidate in risky})
            sound = [candidate for candidate in sound if candidate.id not in refused]
            verdict = GuardVerdict(True, verdict.reason)
        if update is not None:
            told = self.updates.verdict
            if not told.passed:
                refused[update.id] = told
            elif not called:
                verdict = told
        idle = dict(self._judge.idle)
        frozen = self._frozen.asked
        if frozen is not None:
            told = self._frozen.verdict
            if not told.passed:
                refused[frozen.id] = told
            elif not called and update is None:
                verdict = told
            if self._frozen.idle is not None:
                idle[frozen.id] = self._frozen.idle
        failure = self._failed()
        if failure is not None:
            acting = [*called, *([] if update is None else [update])]
            refused.update({c.id: failure for c in acting if not beside_calls(c)})
            sound = [candidate for candidate in sound if candidate.id not in refused]
        return Checked(sound, refused, verdict, idle)

    def _worst(self, group: Sequence[Candidate]) -> GuardVerdict:
        """The worst verdict on any model; what could not be compared must be exact anyway."""
        exact = all(map(_exact_anyway, group))
        worst = guard.worst(list(self._verdicts.values()))
        not_compared = {**self._recorded.not_compared, **self.updates.not_compared}
        reason = next((why for key, why in not_compared.items() if key not in self._verdicts), "")
        if worst is not None and (exact or not reason or not worst.passed):
            return worst
        reason = reason or "no call of a model with a backward pass was seen"
        return GuardVerdict(exact, f"{NOT_COMPARED}{reason}")

    # Looking after a run ------------------------------------------------------------------------

    def look_at(self, kept: Sequence[Candidate]) -> None:
        """Compare the next calls, made under all of these, with the program as written."""
        self._judge.noise_floors.forget()
        called, frozen = _called(kept)
        self._begin(called, None, frozen, True)
        self._looking = bool(kept)

    def answered(self) -> bool:
        """Whether the look has its answer; called at the end of each unit."""
        return not self._looking or self._unit_ended()

    def looked(self) -> tuple[bool, list[str], str]:
        """End the look; returns (whether all was found sound, the boosts that are wrong, why)."""
        verdicts = list(self._verdicts.values())
        wrong, reason = self._judge.wrong
        if self._frozen.asked is not None and self._frozen.seen:
            verdicts.append(self._frozen.verdict)
            if not self._frozen.verdict.passed:
                wrong = [*wrong, self._frozen.asked.id]
                reason = reason or self._frozen.verdict.summary
        passed = bool(verdicts) and all(verdict.passed for verdict in verdicts)
        self._end()
        return passed, wrong, reason


def _called(group: Sequence[Candidate]) -> tuple[list[Candidate], Candidate | None]:
    """(boosts that act on the trained models' calls, one that acts on calls of the others)."""
    called = [candidate for candidate in group if candidate.boost.moment in CALLED]
    frozen = next((c for c in called if c.boost.moment is Moment.FROZEN), None)
    return [c for c in called if c.boost.moment is not Moment.FROZEN], frozen


def _exact_anyway(candidate: Candidate) -> bool:
    """Whether it is exact in every program, so a call that cannot be compared does not matter."""
    return candidate.boost.risk is Risk.EXACT and not candidate.boost.cuts_outputs
