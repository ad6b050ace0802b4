"""When the Guard looks at a running program, and how it gets what it compares.

The calls of one unit of work are there to know the noise between batches; those of the next are
made again, each model's before its first backward pass, when the gradients are there and the
weights are still those of the call.
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
from flatout_agent.live.calls import Made, Recorded, again, begin, finish
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.fence import CALLED, Fence, Unsound, first_line
from flatout_agent.live.guard import Verdict
from flatout_agent.live.updates import Before
from flatout_agent.live.yardsticks import Yardsticks, asked

WAIT_UNITS = 12
"""Units that a check waits for calls that it can compare."""
MOST_WAITING = 64
"""Calls kept that wait for their backward pass."""
NOT_COMPARED = "the gradient was not compared: "
BATCH, COMPARE, GIVE = 1, 2, 3
"""What a unit's calls are recorded for."""
Use = Callable[[list[Recorded]], None]


class Checks:
    """Records calls when asked to, and compares them when their gradients are there."""

    def __init__(self, job: Job, booster: Booster, unsound: Unsound) -> None:
        """unsound: told of boosts that must go, and why."""
        self.job, self.booster, self._unsound = job, booster, unsound
        self._fence = Fence(job, booster, unsound)
        self._replaying = False
        self.on = False
        """Some boost is on: a call that raises is made again as written."""
        self.idle: str | None = None
        self._recording = 0
        self._items: Sequence[Candidate] = ()
        """The boosts that are asked about ..."""
        self._they_are_on = False
        """... which are off or on in the calls that are recorded."""
        self._updates = False
        """They act on the optimizers: an update is compared without any call."""
        self._calls: list[Recorded] = []
        self._earlier: dict[int, Recorded] = {}
        """A call on another batch, by model."""
        self._verdicts: dict[int, Verdict] = {}
        """By model or optimizer."""
        self._not_compared: dict[int, str] = {}
        self._declined = ""
        self._yardsticks = Yardsticks()
        self._before: Before | None = None
        self._looking = False
        """A later look at what is kept: where it is not sound, each boost is asked about alone."""
        self._wrong: tuple[list[str], str] = [], ""
        self._use: Use = lambda calls: None
        self._given = False

    @property
    def replaying(self) -> bool:
        """A call is made again: it is none of the program's."""
        return self._replaying or self._fence.replaying

    def give_calls(self, use: Use) -> Generator[None, Tick, None]:
        """Hand the calls of one unit to `use`, each when its gradient is there."""
        if self.job.device != "cpu":
            return  # nobody has a use for them there, and they hold memory
        self._begin((), False)
        self._recording, self._use, self._given = GIVE, use, False
        for _ in range(WAIT_UNITS):
            yield
            if self._given:
                break
            self._calls = []
        self._end()

    def _give(self, calls: list[Recorded]) -> None:
        if calls:
            self._given = self._replaying = True
            self.booster.recorder.safely("give calls", self._use, calls)
            self._replaying = False

    # Before a boost's first real step -----------------------------------------------------------

    def check(self, candidate: Candidate) -> Generator[None, Tick, Verdict]:
        """The verdict on one boost; waits for calls that can be compared."""
        self.idle = None
        moment = candidate.boost.moment
        if moment is Moment.LOADER:
            return self._switches(candidate)
        return (yield from self._ask([candidate], False))

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, Verdict]:
        """The verdict on all that is kept, against the program as written."""
        called = [item for item in kept if item.boost.moment in CALLED]
        if not called:
            return Verdict(True, "nothing that is on acts on the model's calls")
        return (yield from self._ask(called, True))

    def _ask(self, items: Sequence[Candidate], on: bool) -> Generator[None, Tick, Verdict]:
        verdict = yield from self._look(items, on)
        if not verdict.passed and verdict.yardstick is not None and self._yardsticks.reused:
            self._yardsticks.forget()  # a boost is not refused by what was measured some steps ago
            verdict = yield from self._look(items, on)
        return verdict

    def _look(self, items: Sequence[Candidate], on: bool) -> Generator[None, Tick, Verdict]:
        self._begin(items, on)
        for _ in range(WAIT_UNITS):
            yield
            if self._unit_ended():
                break
        verdict = self._together()
        self._end()
        return verdict

    def _begin(self, items: Sequence[Candidate], on: bool) -> None:
        purpose = asked(items, self.booster.active())
        known = bool(items) and self._yardsticks.cover(self.job.models, purpose, self.job.steps)
        self._items, self._they_are_on = items, on
        self._updates = bool(items) and items[0].boost.moment is Moment.OPTIMIZER
        asks = bool(items) and not self._updates
        self._recording = 0 if not asks else COMPARE if known else BATCH
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

    def _together(self) -> Verdict:
        """The worst verdict on any model; what could not be compared must be exact."""
        risk = highest_risk(self._items)
        verdicts = list(self._verdicts.values())
        failed = next((verdict for verdict in verdicts if not verdict.passed), None)
        if failed is not None:
            return failed
        if self._declined and not verdicts:  # one optimizer or model that takes it is enough
            return Verdict(False, self._declined)
        reason = next(
            (why for key, why in self._not_compared.items() if key not in self._verdicts), ""
        )
        if verdicts and (risk == "exact" or not reason):
            return max(verdicts, key=lambda verdict: verdict.error or 0.0)
        return _not_compared(risk, reason or "no call of a model with a backward pass was seen")

    def _switches(self, candidate: Candidate) -> Verdict:
        """Loading gives the same samples by its own rules; it must only be possible here."""
        refusal = self._all_on([candidate])
        if refusal is None:
            self.booster.off(candidate.id)
        return refusal or Verdict(True, "the same samples, in the same order")

    # Calls --------------------------------------------------------------------------------------

    def call(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root model's call in training, recorded where that is asked for."""
        recorded = self._record(model, args, kwargs) if self._recording else None
        output = self._fence.call(model, call, args, kwargs) if self.on else call(*args, **kwargs)
        if recorded is not None:
            self.booster.recorder.safely("guard", self._finish, recorded, output)
        return output

    def _record(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Recorded | None:
        try:
            reason = replays.not_repeatable(model)
            reason = reason or headroom.lack_for_call(model)
            if not self._refused(model, reason):
                return begin(model, args, kwargs)
        except Exception as error:
            self.booster.recorder.fault("guard", error)
            self._refused(model, first_line(error))
        return None

    def _finish(self, recorded: Recorded, output: Any) -> None:
        """Keep the call for its backward pass, where there is room for it."""
        reason = headroom.lack_for_call(recorded.model, output, self._calls)
        if not self._refused(recorded.model, reason):
            finish(recorded, output, values=self._recording == COMPARE)
            self._calls = [*self._calls[-MOST_WAITING:], recorded]

    def _refused(self, target: object, reason: str | None) -> bool:
        """Whether there is a reason why this model or optimizer is not compared; it is noted."""
        if reason is not None:
            self._not_compared[id(target)] = reason
        return reason is not None

    def backward_ended(self) -> None:
        """Gradients are there and the weights are the same: compare, if that was asked for."""
        if not self._recording or self.replaying or self.job.inside_backward():
            return
        used = [recorded for recorded in self._calls if recorded.used]
        self._calls = [recorded for recorded in self._calls if not recorded.used]
        ready = [call for call in used if not self._refused(call.model, call.refusal)]
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

    def _judge(self, calls: list[Recorded]) -> Verdict | None:
        """The boosts asked about against the program without them, over all these calls.

        None: they cannot be compared.
        """
        risk = highest_risk(self._items)
        worst: Verdict | None = None
        for recorded in calls:
            if recorded.twice and risk != "exact":
                return Verdict(False, f"{NOT_COMPARED}the loss takes gradients of gradients")
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

    def _judge_call(self, recorded: Recorded) -> Verdict | None:
        """None: the call does not give again what it gave."""
        as_it_ran = guard.reference(recorded)
        if as_it_ran is None:
            return None
        if not self._they_are_on:
            return self._compared(recorded, self._items, as_it_ran, None)
        self._all_off(self._items)
        try:
            written = again(recorded)
            return self._compared(recorded, self._items, written, as_it_ran)
        finally:
            reason = self._all_on(self._items)
            if reason is not None:
                ids = [item.id for item in self._items]
                self._unsound(ids, f"it does not come back: {reason}")

    def _compared(
        self,
        recorded: Recorded,
        items: Sequence[Candidate],
        written: Made,
        boosted: Made | Verdict | None,
    ) -> Verdict:
        """The call as written beside the one under these boosts, made here where it is None."""
        purpose, risk = asked(items, self.booster.active()), highest_risk(items)
        model, steps = recorded.model, self.job.steps
        own = self._yardsticks.get(model, purpose, steps)
        if own is None:
            other = self._earlier.get(id(model))
            own = guard.yardstick(recorded, written, other, *purpose)
            self._yardsticks.add(model, purpose, steps, own)
        if boosted is None:
            boosted = self._boosted(recorded, items)
        if isinstance(boosted, Verdict):
            return boosted
        return guard.judge(
            guard.compare(written, boosted, own.tensor_noise), own, risk, purpose.redraws
        )

    def _boosted(self, recorded: Recorded, items: Sequence[Candidate]) -> Made | Verdict:
        """The call under these boosts; why that cannot be."""
        refusal = self._all_on(items)
        if refusal is not None:
            return refusal
        try:
            for _ in range(4):  # what must see some calls first is not compared before it has
                if not any(self.booster.steps_to_ready(item.id) for item in items):
                    break
                again(recorded)
            boosted = again(recorded)
            self.idle = self.booster.idle(items[0].id)
            return boosted
        except Exception as error:
            return Verdict(False, first_line(error), failed=True)
        finally:
            self._all_off(items)

    def _all_on(self, items: Sequence[Candidate]) -> Verdict | None:
        notes = [note for item in items if (note := self.booster.on(item.order)) is not None]
        return Verdict(False, notes[0].reason, failed=notes[0].state == "failed") if notes else None

    def _all_off(self, items: Sequence[Candidate]) -> None:
        for item in reversed(items):
            self.booster.off(item.id)

    # Updates ------------------------------------------------------------------------------------

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights where a boost of the update is to be compared."""
        if self._updates:
            reason = headroom.lack_for_update(optimizer)
            if not self._refused(optimizer, reason):
                self._before = Before(optimizer)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The program's own update is done: do it again under the boost, and compare."""
        before, self._before = self._before, None
        if before is None or before.optimizer is not optimizer or not self._items:
            return
        item = self._items[0]

        def apply() -> Callable[[], None]:
            return load(item.id).apply(self.job, optimizer, dict(item.params)).undo

        try:
            verdict = before.verdict(apply)
        except Declined as reason:
            self._declined = str(reason)
            return
        except Exception as error:
            verdict = Verdict(False, first_line(error), failed=True)
        if verdict is not None:
            self._verdicts[id(optimizer)] = verdict

    # Looking after a run ------------------------------------------------------------------------

    def look_at(self, kept: Sequence[Candidate]) -> None:
        """Compare the next calls, made under all of these, with the program as written."""
        self._yardsticks.forget()
        self._begin(kept, True)
        self._looking = bool(kept)

    def answered(self) -> bool:
        """Whether the look has its answer; asked at the end of each unit."""
        return not self._looking or self._unit_ended()

    def looked(self) -> tuple[bool, list[str], str]:
        """End the look: (whether all was seen to be sound, boosts that are wrong, why)."""
        verdicts = list(self._verdicts.values())
        passed = bool(verdicts) and all(verdict.passed for verdict in verdicts)
        wrong, reason = self._wrong
        self._end()
        return passed, wrong, reason

    def _find_wrong(self, calls: list[Recorded], verdict: Verdict) -> None:
        """What is kept is no longer sound together: each for itself tells which are wrong."""
        if verdict.error is None:
            return
        kept = list(self._items)
        wrong: list[str] = []
        self._all_off(kept)
        try:
            wrong = [item.id for item in kept if not self._sound_alone(calls, item)]
        finally:
            self._all_on(kept)
            self._wrong = wrong or [item.id for item in kept], verdict.summary

    def _sound_alone(self, calls: list[Recorded], item: Candidate) -> bool:
        """One boost against the program as written, on calls that were made under several."""
        return all(
            self._compared(recorded, [item], again(recorded), None).passed for recorded in calls
        )


def _not_compared(risk: str, reason: str) -> Verdict:
    """No call could be compared: only what cannot change the arithmetic may go on."""
    return Verdict(risk == "exact", f"{NOT_COMPARED}{reason}")
