"""When the Guard checks a running program, and how it gets what it compares.

The calls of one unit of work give the noise between batches; those of the next are repeated, each
model's when its gradients are available and the weights are still those of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from flatout_agent.boost import Declined, Moment
from flatout_agent.booster import Booster
from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.live import calls as replays
from flatout_agent.live import guard, headroom
from flatout_agent.live.blocks import Tick
from flatout_agent.live.calls import RecordedCall, RepeatedCall, again, begin, finish
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.fence import CALLED, Fence, Unsound, first_line
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.updates import WeightsBefore
from flatout_agent.live.yardsticks import Yardsticks, purpose_of

WAIT_UNITS = 12
"""Units for which a check waits for calls that it can compare."""
MOST_WAITING = 64
"""Calls kept that wait for their backward pass."""
NOT_COMPARED = "the gradient was not compared: "
BATCH, COMPARE, GIVE = 1, 2, 3
"""What a unit's calls are recorded for."""
Use = Callable[[list[RecordedCall]], None]


class Checks:
    """Records calls on demand, and compares them as soon as their gradients are available."""

    def __init__(self, job: Job, booster: Booster, unsound: Unsound) -> None:
        """unsound: called with the boosts that must go, and why."""
        self.job, self.booster, self._unsound = job, booster, unsound
        self._fence = Fence(job, booster, unsound)
        self._replaying = False
        self.on = False
        """Some boost is on: a call that raises is repeated as written."""
        self.idle: str | None = None
        self._recording = 0
        self._candidates: Sequence[Candidate] = ()
        """The boosts in question ..."""
        self._calls_boosted = False
        """... and whether they are on in the calls that are recorded."""
        self._updates = False
        """They act on the optimizers: updates are compared, not calls."""
        self._calls: list[RecordedCall] = []
        self._earlier: dict[int, RecordedCall] = {}
        """A call on another batch, by model."""
        self._verdicts: dict[int, GuardVerdict] = {}
        """By model or optimizer."""
        self._not_compared: dict[int, str] = {}
        self._declined = ""
        self._yardsticks = Yardsticks()
        self._before: WeightsBefore | None = None
        self._looking = False
        """A later look at what is kept: where it is unsound, each boost is then checked alone."""
        self._wrong: tuple[list[str], str] = [], ""
        self._use: Use = lambda calls: None
        self._delivered = False

    @property
    def replaying(self) -> bool:
        """A call is being repeated: it is not one of the program's."""
        return self._replaying or self._fence.replaying

    def give_calls(self, use: Use) -> Generator[None, Tick, None]:
        """Hand the calls of one unit to `use`, each as soon as its gradient is available."""
        if self.job.device != "cpu":
            return  # nothing uses them there, and they hold memory
        self._begin((), False)
        self._recording, self._use, self._delivered = GIVE, use, False
        for _ in range(WAIT_UNITS):
            yield
            if self._delivered:
                break
            self._calls = []
        self._end()

    def _give(self, calls: list[RecordedCall]) -> None:
        if calls:
            self._delivered = self._replaying = True
            self.booster.recorder.safely("give calls", self._use, calls)
            self._replaying = False

    # Before a boost's first real step -----------------------------------------------------------

    def check(self, candidate: Candidate) -> Generator[None, Tick, GuardVerdict]:
        """The verdict on one boost; waits for calls that can be compared."""
        self.idle = None
        moment = candidate.boost.moment
        if moment is Moment.LOADER:
            return self._switches(candidate)
        return (yield from self._ask([candidate], False))

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, GuardVerdict]:
        """The verdict on all that is kept, against the program as written."""
        model_boosts = [candidate for candidate in kept if candidate.boost.moment in CALLED]
        if not model_boosts:
            return GuardVerdict(True, "nothing that is on acts on the model's calls")
        return (yield from self._ask(model_boosts, True))

    def _ask(
        self, candidates: Sequence[Candidate], on: bool
    ) -> Generator[None, Tick, GuardVerdict]:
        verdict = yield from self._look(candidates, on)
        if not verdict.passed and verdict.yardstick is not None and self._yardsticks.reused:
            self._yardsticks.forget()  # no refusal on the strength of an old measurement
            verdict = yield from self._look(candidates, on)
        return verdict

    def _look(
        self, candidates: Sequence[Candidate], on: bool
    ) -> Generator[None, Tick, GuardVerdict]:
        self._begin(candidates, on)
        for _ in range(WAIT_UNITS):
            yield
            if self._unit_ended():
                break
        verdict = self._together()
        self._end()
        return verdict

    def _begin(self, candidates: Sequence[Candidate], on: bool) -> None:
        purpose = purpose_of(candidates, self.booster.active())
        measured = bool(candidates) and self._yardsticks.cover(
            self.job.models, purpose, self.job.steps
        )
        self._candidates, self._calls_boosted = candidates, on
        self._updates = bool(candidates) and candidates[0].boost.moment is Moment.OPTIMIZER
        compares = bool(candidates) and not self._updates
        self._recording = 0 if not compares else COMPARE if measured else BATCH
        self._calls, self._earlier, self._verdicts, self._not_compared = [], {}, {}, {}
        self._declined, self._looking, self._wrong = "", False, ([], "")

    def _end(self) -> None:
        self._begin((), False)

    def _unit_ended(self) -> bool:
        """Whether there is an answer."""
        if self._verdicts or self._declined:
            return True
        self._calls = []
        if self._recording == BATCH and self._earlier:
            self._recording = COMPARE
        return False

    def _together(self) -> GuardVerdict:
        """The worst verdict on any model; what could not be compared must be exact."""
        risk = highest_risk(self._candidates)
        verdicts = list(self._verdicts.values())
        failed = next((verdict for verdict in verdicts if not verdict.passed), None)
        if failed is not None:
            return failed
        if self._declined and not verdicts:  # one optimizer or model that takes it is enough
            return GuardVerdict(False, self._declined)
        reason = next(
            (why for key, why in self._not_compared.items() if key not in self._verdicts), ""
        )
        if verdicts and (risk == "exact" or not reason):
            return max(verdicts, key=lambda verdict: verdict.error or 0.0)
        return _not_compared(risk, reason or "no call of a model with a backward pass was seen")

    def _switches(self, candidate: Candidate) -> GuardVerdict:
        """Boosts of loading keep the samples by their own rules: one must only be possible here."""
        refusal = self._all_on([candidate])
        if refusal is None:
            self.booster.off(candidate.id)
        return refusal or GuardVerdict(True, "the same samples, in the same order")

    # Calls --------------------------------------------------------------------------------------

    def call(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root model's call in training, recorded on demand."""
        recorded = self._record(model, args, kwargs) if self._recording else None
        output = self._fence.call(model, call, args, kwargs) if self.on else call(*args, **kwargs)
        if recorded is not None:
            self.booster.recorder.safely("guard", self._finish, recorded, output)
        return output

    def _record(self, model: torch.nn.Module, args: Any, kwargs: Any) -> RecordedCall | None:
        try:
            reason = replays.not_repeatable(model)
            reason = reason or headroom.lack_for_call(model)
            if not self._refused(model, reason):
                return begin(model, args, kwargs)
        except Exception as error:
            self.booster.recorder.fault("guard", error)
            self._refused(model, first_line(error))
        return None

    def _finish(self, recorded: RecordedCall, output: Any) -> None:
        """Keep the call for its backward pass, where there is room for it."""
        reason = headroom.lack_for_call(recorded.model, output, self._calls)
        if not self._refused(recorded.model, reason):
            finish(recorded, output, values=self._recording == COMPARE)
            self._calls = [*self._calls[-MOST_WAITING:], recorded]

    def _refused(self, target: object, reason: str | None) -> bool:
        """Whether there is a reason not to compare this model or optimizer; note it."""
        if reason is not None:
            self._not_compared[id(target)] = reason
        return reason is not None

    def backward_ended(self) -> None:
        """Gradients are available and the weights unchanged: compare, if a check is under way."""
        if not self._recording or self.replaying or self.job.inside_backward():
            return
        finished = [recorded for recorded in self._calls if recorded.used]
        self._calls = [recorded for recorded in self._calls if not recorded.used]
        ready = [call for call in finished if not self._refused(call.model, call.refusal)]
        if self._recording == GIVE:
            self._give(ready)
            return
        if self._recording == BATCH:
            for recorded in ready:
                self._earlier.setdefault(id(recorded.model), recorded)
            return
        ready = [recorded for recorded in ready if id(recorded.model) not in self._verdicts]
        if not ready:
            return
        self._replaying = True
        try:
            verdict = self._judge(ready)
            if self._looking and verdict is not None and not verdict.passed:
                self._find_wrong(ready, verdict)
        finally:
            self._replaying = False
        if verdict is not None:
            self._verdicts.update({id(recorded.model): verdict for recorded in ready})

    def _judge(self, calls: list[RecordedCall]) -> GuardVerdict | None:
        """The boosts in question against the program without them, over all these calls.

        None: they cannot be compared.
        """
        risk = highest_risk(self._candidates)
        worst: GuardVerdict | None = None
        for recorded in calls:
            if recorded.twice and risk != "exact":
                return GuardVerdict(False, f"{NOT_COMPARED}the loss takes gradients of gradients")
            try:
                verdict = self._judge_call(recorded)
            except Exception as error:
                verdict, why = None, first_line(error)
            else:
                why = "the model's call does not give the same twice"
            if verdict is None:
                self._not_compared[id(recorded.model)] = why
                return None
            if worst is None or not verdict.passed or (verdict.error or 0) > (worst.error or 0):
                worst = verdict
            if not verdict.passed:
                break
        return worst

    def _judge_call(self, recorded: RecordedCall) -> GuardVerdict | None:
        """None: the call does not give the same again."""
        as_run = guard.reference(recorded)
        if as_run is None:
            return None
        if not self._calls_boosted:
            return self._compared(recorded, self._candidates, as_run, None)
        self._all_off(self._candidates)
        try:
            written = again(recorded)
            return self._compared(recorded, self._candidates, written, as_run)
        finally:
            reason = self._all_on(self._candidates)
            if reason is not None:
                ids = [candidate.id for candidate in self._candidates]
                self._unsound(ids, f"it does not come back: {reason}")

    def _compared(
        self,
        recorded: RecordedCall,
        candidates: Sequence[Candidate],
        written: RepeatedCall,
        boosted: RepeatedCall | GuardVerdict | None,
    ) -> GuardVerdict:
        """Compare the call as written with the one under these boosts (None: make it here)."""
        purpose, risk = purpose_of(candidates, self.booster.active()), highest_risk(candidates)
        model, steps = recorded.model, self.job.steps
        yardstick = self._yardsticks.get(model, purpose, steps)
        if yardstick is None:
            other_batch = self._earlier.get(id(model))
            yardstick = guard.yardstick(recorded, written, other_batch, *purpose)
            self._yardsticks.add(model, purpose, steps, yardstick)
        if boosted is None:
            boosted = self._boosted(recorded, candidates)
        if isinstance(boosted, GuardVerdict):
            return boosted
        comparison = guard.compare(written, boosted, yardstick.tensor_noise)
        return guard.judge(comparison, yardstick, risk, purpose.redraws)

    def _boosted(
        self, recorded: RecordedCall, candidates: Sequence[Candidate]
    ) -> RepeatedCall | GuardVerdict:
        """The call under these boosts, or why there is none."""
        refusal = self._all_on(candidates)
        if refusal is not None:
            return refusal
        try:
            for _ in range(4):  # a boost that needs some calls to start is compared after them
                if not any(self.booster.steps_to_ready(candidate.id) for candidate in candidates):
                    break
                again(recorded)
            boosted = again(recorded)
            self.idle = self.booster.idle(candidates[0].id)
            return boosted
        except Exception as error:
            return GuardVerdict(False, first_line(error), failed=True)
        finally:
            self._all_off(candidates)

    def _all_on(self, candidates: Sequence[Candidate]) -> GuardVerdict | None:
        answers = [self.booster.on(candidate.order) for candidate in candidates]
        notes = [note for note in answers if note is not None]
        return (
            GuardVerdict(False, notes[0].reason, failed=notes[0].state == "failed")
            if notes
            else None
        )

    def _all_off(self, candidates: Sequence[Candidate]) -> None:
        for candidate in reversed(candidates):
            self.booster.off(candidate.id)

    # Updates ------------------------------------------------------------------------------------

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights where a boost of the update is to be checked."""
        if self._updates:
            reason = headroom.lack_for_update(optimizer)
            if not self._refused(optimizer, reason):
                self._before = WeightsBefore(optimizer)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The program's own update is done: repeat it under the boost, and compare."""
        before, self._before = self._before, None
        if before is None or before.optimizer is not optimizer or not self._candidates:
            return
        candidate = self._candidates[0]

        def apply() -> Callable[[], None]:
            return load(candidate.id).apply(self.job, optimizer, dict(candidate.params)).undo

        try:
            verdict = before.verdict(apply)
        except Declined as reason:
            self._declined = str(reason)
            return
        except Exception as error:
            verdict = GuardVerdict(False, first_line(error), failed=True)
        if verdict is not None:
            self._verdicts[id(optimizer)] = verdict

    # Looking after a run ------------------------------------------------------------------------

    def look_at(self, kept: Sequence[Candidate]) -> None:
        """Compare the next calls, made under all of these, with the program as written."""
        self._yardsticks.forget()
        self._begin(kept, True)
        self._looking = bool(kept)

    def answered(self) -> bool:
        """Whether the look has its answer; called at the end of each unit."""
        return not self._looking or self._unit_ended()

    def looked(self) -> tuple[bool, list[str], str]:
        """End the look: (whether all was seen to be sound, boosts that are wrong, why)."""
        verdicts = list(self._verdicts.values())
        passed = bool(verdicts) and all(verdict.passed for verdict in verdicts)
        wrong, reason = self._wrong
        self._end()
        return passed, wrong, reason

    def _find_wrong(self, calls: list[RecordedCall], verdict: GuardVerdict) -> None:
        """What is kept is no longer sound together: find the boosts that are wrong alone."""
        if verdict.error is None:
            return
        kept = list(self._candidates)
        wrong: list[str] = []
        self._all_off(kept)
        try:
            wrong = [candidate.id for candidate in kept if not self._sound_alone(calls, candidate)]
        finally:
            self._all_on(kept)
            self._wrong = wrong or [candidate.id for candidate in kept], verdict.summary

    def _sound_alone(self, calls: list[RecordedCall], candidate: Candidate) -> bool:
        """One boost against the program as written, on calls that were made under several."""
        return all(
            self._compared(recorded, [candidate], again(recorded), None).passed
            for recorded in calls
        )


def _not_compared(risk: str, reason: str) -> GuardVerdict:
    """No call could be compared: only exact boosts may go on."""
    return GuardVerdict(risk == "exact", f"{NOT_COMPARED}{reason}")
