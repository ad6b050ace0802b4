"""When the Guard looks at a running program, and how it gets what it compares."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from flatout_agent.booster import Booster
from flatout_agent.boosts import Declined, Moment, load
from flatout_agent.job import Job
from flatout_agent.live import guard
from flatout_agent.live.blocks import Tick
from flatout_agent.live.calls import Made, Recorded, again, begin, finish
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import Verdict, Yardstick
from flatout_agent.live.updates import Before

WAIT_UNITS = 12
"""Units that a check waits for a call that it can compare."""
FIRST_LOOK = 100
"""Steps after the last decision at which the guard looks again; then twice as many, and so on."""

Unsound = Callable[[Sequence[str], str, int], None]
NOT_COMPARED = "the gradient was not compared: "


class Checks:
    """Records calls when asked to, and compares them when their gradients are there."""

    def __init__(self, job: Job, booster: Booster, unsound: Unsound) -> None:
        """unsound: told of boosts that must go, why, and of the last step that was sound."""
        self.job, self.booster, self._unsound = job, booster, unsound
        self.torch = job.torch
        self.replaying = False
        self.on = False
        """Some boost is on: a call that raises is made again as written."""
        self.idle: str | None = None
        self._recording = 0
        self._calls: list[Recorded] = []
        self._earlier: Recorded | None = None
        self._candidate: Candidate | None = None
        self._together: Sequence[Candidate] = ()
        self._verdict: Verdict | None = None
        self._why_none = ""
        self._before: Before | None = None
        self._kept: list[Candidate] = []
        self._next_look: int | None = None
        self._look_every = FIRST_LOOK
        self._sound_step = 0

    # Before a boost's first real step -----------------------------------------------------------

    def check(self, candidate: Candidate) -> Generator[None, Tick, Verdict]:
        """The verdict on one boost; waits for calls that can be compared."""
        self.idle = None
        moment = candidate.boost.moment
        if moment is Moment.LOADER:
            return self._switches(candidate)
        self._candidate, self._verdict, self._why_none = candidate, None, ""
        self._calls, self._earlier = [], None
        self._recording = 2 if moment is not Moment.OPTIMIZER else 0
        yield from self._wait()
        self._candidate = None
        return self._verdict or self._without_comparison(candidate.boost.risk.value)

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, Verdict]:
        """The verdict on all that is kept, against the program as written."""
        self._verdict, self._why_none = None, ""
        self._together = [item for item in kept if item.boost.moment in CALLED]
        if not self._together:
            return Verdict(True, "nothing that is on acts on the model's calls")
        self._calls, self._earlier, self._recording = [], None, 2
        yield from self._wait()
        self._together = ()
        return self._verdict or self._without_comparison(_highest(kept))

    def _wait(self) -> Generator[None, Tick, None]:
        for _ in range(WAIT_UNITS):
            yield
            if self._verdict is not None:
                break
        self._recording, self._calls, self._earlier = 0, [], None

    def _switches(self, candidate: Candidate) -> Verdict:
        """Loading gives the same samples by its own rules; it must only be possible here."""
        reason = self.booster.on(candidate.order)
        if reason is None:
            self.booster.off(candidate.id)
            return Verdict(True, "the same samples, in the same order")
        return Verdict(False, reason)

    def _without_comparison(self, risk: str) -> Verdict:
        """No call could be compared: only what cannot change the arithmetic may go on."""
        reason = self._why_none or "no call of a model with a backward pass was seen"
        return Verdict(risk == "exact", f"{NOT_COMPARED}{reason}")

    # Calls --------------------------------------------------------------------------------------

    def call(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root model's call in training, recorded where that is asked for."""
        recorded = self._begin(model, args, kwargs) if self._recording else None
        made = self._fenced if self.on else _plain
        output = made(model, call, args, kwargs)
        if recorded is not None:
            try:
                finish(self.torch, recorded, output)
                self._calls.append(recorded)
            except Exception as error:
                self.booster.recorder.fault("guard", error)
        return output

    def _begin(self, model: Any, args: Any, kwargs: Any) -> Recorded | None:
        reason = _not_repeatable(model)
        if reason is None:
            try:
                return begin(self.torch, model, args, kwargs)
            except Exception as error:
                self.booster.recorder.fault("guard", error)
                reason = _first_line(error)
        self._why_none = reason
        return None

    def _fenced(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that raises under a boost is made again as written: whose error is it?"""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            boosts = list(self.booster.applied)
            for boost in boosts:
                self.booster.off(boost)
            self.replaying = True
            try:
                output = model(*args, **kwargs)  # raises where it is the program's own error
            finally:
                self.replaying = False
            self._unsound(boosts, f"a call failed under it: {_first_line(error)}", self.job.steps)
            return output

    def backward_ended(self) -> None:
        """Gradients are there and the weights are the same: compare, if that was asked for."""
        if not self._recording or self.replaying:
            return
        ready = [recorded for recorded in self._calls if recorded.complete]
        self._calls = []
        if not ready:
            self._why_none = self._why_none or "its inputs are written to, or give no gradient"
            return
        self._recording -= 1
        if self._recording:  # the first batch is there to know the noise between batches
            self._earlier = ready[0]
            return
        self.replaying = True
        try:
            if self._candidate is not None:
                self._verdict = self._judge(ready, [self._candidate], False)
            elif self._together:
                self._verdict = self._judge(ready, self._together, True)
            else:
                self._look(ready)
        finally:
            self.replaying = False

    def _judge(self, calls: list[Recorded], items: Sequence[Candidate], on: bool) -> Verdict:
        """These boosts against the program without them, over all calls before this backward pass.

        on: they are on now, and were when the calls were made.
        """
        risk = _highest(items)
        if any(recorded.twice for recorded in calls) and risk != "exact":
            return Verdict(False, f"{NOT_COMPARED}the loss takes gradients of gradients")
        worst: Verdict | None = None
        for recorded in calls:
            verdict = self._judge_call(recorded, items, risk, on)
            if verdict is None:
                self._why_none = "the model's call does not give the same twice"
                return self._without_comparison(risk)
            if worst is None or not verdict.passed or (verdict.error or 0) > (worst.error or 0):
                worst = verdict
            if not verdict.passed:
                break
        assert worst is not None
        return worst

    def _judge_call(
        self, recorded: Recorded, items: Sequence[Candidate], risk: str, on: bool
    ) -> Verdict | None:
        """None: the call cannot be repeated."""
        redraws = any(item.boost.redraws for item in items)
        try:
            as_it_ran = guard.reference(self.torch, recorded)
            if as_it_ran is None:
                return None
            if on:
                self._all_off(items)
            written = again(self.torch, recorded) if on else as_it_ran
            own = guard.yardstick(self.torch, recorded, written, self._earlier, redraws)
        except Exception as error:
            return Verdict(False, f"{NOT_COMPARED}{_first_line(error)}")
        finally:
            if on:
                self._all_on(items)
        boosted = as_it_ran if on else self._boosted(recorded, items)
        if isinstance(boosted, Verdict):
            return boosted
        return guard.judge(guard.compare(written, boosted, own.tensor_noise), own, risk, redraws)

    def _boosted(self, recorded: Recorded, items: Sequence[Candidate]) -> Made | Verdict:
        """The call under these boosts; why that cannot be."""
        reason = self._all_on(items)
        if reason is not None:
            return Verdict(False, reason)
        try:
            boosted = again(self.torch, recorded)
            self.idle = self.booster.idle(items[0].id)
            return boosted
        except Exception as error:
            return Verdict(False, f"failed: {_first_line(error)}")
        finally:
            self._all_off(items)

    def _all_on(self, items: Sequence[Candidate]) -> str | None:
        reasons = [self.booster.on(item.order) for item in items]
        return next((reason for reason in reasons if reason is not None), None)

    def _all_off(self, items: Sequence[Candidate]) -> None:
        for item in reversed(items):
            self.booster.off(item.id)

    # Updates ------------------------------------------------------------------------------------

    def optimizer_starts(self, optimizer: Any) -> None:
        """Keep the weights where a boost of the update is to be compared."""
        candidate = self._candidate
        if candidate is None or candidate.boost.moment is not Moment.OPTIMIZER:
            return
        self._before = Before(self.torch, optimizer)

    def optimizer_ends(self, optimizer: Any) -> None:
        """The program's own update is done: do it again under the boost, and compare."""
        before, candidate = self._before, self._candidate
        self._before = None
        if before is None or candidate is None or before.optimizer is not optimizer:
            return
        module = load(candidate.id)

        def apply() -> Callable[[], None]:
            return module.apply(self.job, optimizer, dict(candidate.params)).undo

        try:
            written, boosted = before.twice(apply)
        except Declined as reason:
            self._verdict = Verdict(False, str(reason))
            return
        except Exception as error:
            self._verdict = Verdict(False, f"failed: {_first_line(error)}")
            return
        found = guard.compare(written, boosted)
        own = Yardstick(UPDATE_REORDERED, None, None)
        self._verdict = guard.judge(found, own, "exact", False)

    # Looking after a run ------------------------------------------------------------------------

    def look_after(self, kept: list[Candidate]) -> None:
        """From now on look again at steps spaced twice as far each time, while any is kept."""
        self._kept = kept
        self._sound_step = self.job.steps
        self._next_look = self.job.steps + self._look_every
        if self._called():
            self.job.after_step(self._step)

    def _called(self) -> list[Candidate]:
        """What is kept and acts on the model's calls."""
        return [item for item in self._kept if item.boost.moment in CALLED]

    def _step(self) -> None:
        if self._next_look is not None and self.job.steps >= self._next_look and self._called():
            self._next_look = None
            self._recording, self._calls, self._earlier = 2, [], None

    def _look(self, calls: list[Recorded]) -> None:
        """All that is kept against the program as written; where that fails, each for itself."""
        kept = self._called()
        verdict = self._judge(calls, kept, True)
        self._look_every *= 2
        self._next_look = self.job.steps + self._look_every
        if verdict.passed or verdict.error is None:
            self._sound_step = self.job.steps
            return
        self._all_off(kept)
        wrong = []
        for item in kept:  # the calls were made under them, so each is asked about from here on
            alone = self._alone(calls, item)
            if not alone.passed:
                wrong.append(item.id)
        self._all_on(kept)
        reason = f"the guard no longer holds: {verdict.reason}"
        self._unsound(wrong or [item.id for item in kept], reason, self._sound_step)

    def _alone(self, calls: list[Recorded], item: Candidate) -> Verdict:
        """One boost against the program as written, on calls that were made under several."""
        worst = Verdict(True, "")
        for recorded in calls:
            written = again(self.torch, recorded)
            redraws = item.boost.redraws
            own = guard.yardstick(self.torch, recorded, written, self._earlier, redraws)
            boosted = self._boosted(recorded, [item])
            if isinstance(boosted, Verdict):
                return boosted
            found = guard.compare(written, boosted, own.tensor_noise)
            worst = guard.judge(found, own, item.boost.risk.value, redraws)
            if not worst.passed:
                break
        return worst


CALLED = (Moment.MODEL, Moment.START)
"""Boosts of these moments act on what a call of the model computes."""
UPDATE_REORDERED = 2e-5
"""Updates are small differences of large weights: their last places are rounding."""


def _plain(model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs)


def _not_repeatable(model: Any) -> str | None:
    """Why this model's calls are not made again: hooks of the program's would be called, too."""
    for module in model.modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            owner = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(owner).startswith(("torch.", "flatout")):
                return "the model has forward hooks of the program's own"
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _highest(items: Sequence[Candidate]) -> str:
    """The highest risk among these boosts."""
    risks = ("exact", "rounding", "semantics")
    return max((item.boost.risk.value for item in items), key=risks.index, default="exact")
