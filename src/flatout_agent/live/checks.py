"""When the Guard checks a running program, and how it gets what it compares.

The calls of one unit of work give the noise between batches. The calls of the next unit are
repeated: each as soon as its gradients are available, while the weights are still those of the
call. Boosts are checked together. If the Guard refuses them, the same call is repeated without the
likeliest ones until the wrong ones are known, so none waits for another unit.
"""

from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Declined, Moment, Risk
from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.limits import world_size
from flatout_agent.live import calls as replays
from flatout_agent.live import guard, headroom
from flatout_agent.live.calls import RecordedCall, RepeatedCall, again, begin, finish
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.failed_calls import CALLED, FailedCalls, Unsound, first_line
from flatout_agent.live.frozen_calls import FrozenCalls
from flatout_agent.live.guard import GuardVerdict, NoiseFloor
from flatout_agent.live.noise_floors import NoiseFloorPurpose, NoiseFloors, purpose_of
from flatout_agent.live.state import Tick
from flatout_agent.live.updates import WeightsBefore
from flatout_agent.live.without_dropout import can_run_without_dropout
from flatout_agent.speedups import forward_state, own_hooks
from flatout_agent.speedups.memory_counters import beside_the_program

WAIT_UNITS = 12
"""Units for which a check waits for calls that it can compare."""
MOST_PASSED_OVER = 6
"""Calls that it waits for one in which all boosts in question do something."""
MOST_WAITING = 64
"""Calls kept that wait for their backward pass."""
NOT_COMPARED = "the gradient was not compared: "
OUR_FAULT = "a part of the check failed inside flatout"
CHECKING = ("backward", "guard", "optimizer", "step")
"""The name under which such an error is recorded."""
OURS = Path(__file__).parents[1]
BATCH, COMPARE, GIVE = 1, 2, 3
"""The purpose for which a unit's calls are recorded."""
Use = Callable[[list[RecordedCall]], None]
Agree = Callable[[float, str], float]


@dataclass
class Checked:
    """The Guard's answer on some boosts."""

    sound: list[Candidate]
    """The boosts that may be on together."""
    refused: dict[str, GuardVerdict]
    """The verdicts on the others, by id."""
    verdict: GuardVerdict
    """The verdict on the sound ones together, with the numbers of the worst call."""
    idle: dict[str, str] = field(default_factory=dict)
    """The sound ones that did not take hold, and why."""


class Checks:
    """Records calls on demand, and compares them as soon as their gradients are available."""

    def __init__(
        self,
        job: Job,
        booster: Booster,
        unsound: Unsound,
        agree: Agree = lambda value, how: value,
    ) -> None:
        """unsound: called with the boosts that must go, and why. agree: see `Peers.agree`."""
        self.job, self.booster, self._unsound, self._agree = job, booster, unsound, agree
        self._failed_calls = FailedCalls(job, booster, unsound)
        self._replaying = False
        self.on = False
        """Some boost is on: a call that raises is repeated as written."""
        self.own_s = 0.0
        """Seconds spent on repeating calls since this was last set to zero."""
        self._recording = self._passed_over = 0
        self._group: list[Candidate] = []
        """The boosts in question that act on calls and have not been refused ..."""
        self._refused: dict[str, GuardVerdict] = {}
        self._idle: dict[str, str] = {}
        self._calls_boosted = False
        """... and whether they are on in the calls that are recorded."""
        self._update: Candidate | None = None
        """A boost in question that acts on the optimizers: updates are compared, not calls."""
        self._calls: list[RecordedCall] = []
        self._earlier: dict[int, RecordedCall] = {}
        """A call on another batch, for each model."""
        self._verdicts: dict[int, GuardVerdict] = {}
        """By model."""
        self._updates: dict[int, GuardVerdict] = {}
        """By optimizer."""
        self._not_compared: dict[int, str] = {}
        self._declined = ""
        self._faults_before = 0
        """The number of our own errors when the check began: see `_failed`."""
        self._written: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models whose inputs the program writes to before the backward pass ends."""
        self._noise_floors = NoiseFloors()
        self._frozen = FrozenCalls(booster)
        self._before: WeightsBefore | None = None
        self._looking = False
        """This is a later look at the kept boosts: if they are unsound, each is then checked
        alone."""
        self._wrong: tuple[list[str], str] = [], ""
        self._use: Use = lambda calls: None
        self._delivered = False

    @property
    def replaying(self) -> bool:
        """A call is being repeated; it is not the program's own."""
        return self._replaying or self._failed_calls.replaying

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        began, self._replaying = time.perf_counter(), True
        try:
            with self._own_memory():
                yield
        finally:
            self._replaying = False
            self.own_s += time.perf_counter() - began

    def _own_memory(self) -> AbstractContextManager[None]:
        return beside_the_program(forward_state.devices(self.job.models))

    def give_calls(self, use: Use) -> Generator[None, Tick, None]:
        """Hand the calls of one unit to `use`, each as soon as its gradient is available.

        They then serve as the other batch of the next check.
        """
        if self.job.device != "cpu":
            return  # nothing uses them there, and they hold memory
        self._begin([], None, False)
        self._recording, self._use, self._delivered = GIVE, use, False
        for _ in range(WAIT_UNITS):
            yield
            self._recording = 0 if self._delivered else GIVE  # other ranks may still wait
            if self._agree(float(self._delivered), "min"):
                break
            self._calls = []
        earlier = self._earlier
        self._begin([], None, False)
        self._earlier = earlier

    def _give(self, calls: list[RecordedCall]) -> None:
        if calls:
            self._delivered = True
            with self._repeating():
                self.booster.recorder.safely("give calls", self._use_repeated, calls)
            self._earlier.update({id(recorded.model): recorded for recorded in calls})

    def _use_repeated(self, calls: list[RecordedCall]) -> None:
        with suppress(replays.OtherOutputsError):  # these calls show nothing
            self._use(calls)

    # Before the first real step under boosts ----------------------------------------------------

    def check(self, group: Sequence[Candidate]) -> Generator[None, Tick, Checked]:
        """Wait for calls that can be compared, and say which of these boosts are sound together."""
        update = next((c for c in group if c.boost.moment is Moment.OPTIMIZER), None)
        called, frozen = _called(group)
        if any(candidate.again for candidate in called):
            self._noise_floors.forget()  # the program was to change since
        checked = yield from self._ask(called, update, frozen)
        for candidate in group:
            if candidate.boost.moment is Moment.LOADER:
                refusal = self._possible(candidate)
                if refusal is not None:
                    checked.refused[candidate.id] = refusal
        checked.sound = [candidate for candidate in group if candidate.id not in checked.refused]
        if not called and update is None and frozen is None:
            checked.verdict = GuardVerdict(True, "the same samples, in the same order")
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

    def _ask(
        self, called: list[Candidate], update: Candidate | None, frozen: Candidate | None
    ) -> Generator[None, Tick, Checked]:
        if not called and update is None and frozen is None:
            return Checked([], {}, GuardVerdict(True, ""))
        yield from self._look(called, update, frozen, False)
        checked = self._answer(called, update)
        self._end()
        return checked

    def _look(
        self,
        called: list[Candidate],
        update: Candidate | None,
        frozen: Candidate | None,
        on: bool,
    ) -> Generator[None, Tick, None]:
        """Wait for an answer, and once more if it refuses something by an old measurement."""
        for second in (False, True):
            self._begin(called, update, on)
            self._frozen.ask(frozen, on)
            for _ in range(WAIT_UNITS):
                yield
                if self._agree(float(self._unit_ended()), "min"):
                    break
            if second or not self._agree(float(self._refuses_by_old_measurement()), "max"):
                return
            self._noise_floors.forget()

    def _refuses_by_old_measurement(self) -> bool:
        verdicts = [*self._refused.values(), *self._verdicts.values()]
        measured = any(not v.passed and v.noise_floor is not None for v in verdicts)
        return measured and self._noise_floors.reused

    def _begin(self, called: Sequence[Candidate], update: Candidate | None, on: bool) -> None:
        self._group, self._calls_boosted, self._update = list(called), on, update
        known = bool(called) and self._has_other_batch()
        self._recording = 0 if not called else COMPARE if known else BATCH
        self._passed_over = 0
        if not known:
            self._earlier = {}
        self._calls, self._verdicts, self._updates, self._not_compared = [], {}, {}, {}
        self._refused, self._idle, self._declined = {}, {}, ""
        self._looking, self._wrong = False, ([], "")
        self._noise_floors.reused = False
        self._frozen.ask(None, False)
        self._faults_before = self._faults()

    def _faults(self) -> int:
        faults = self.booster.recorder.faults
        return sum(faults[place] for place in CHECKING)

    def _failed(self) -> GuardVerdict | None:
        """The verdict if a part of the check failed by our own fault: nothing is kept."""
        failed = self._faults() > self._faults_before
        return GuardVerdict(False, f"{NOT_COMPARED}{OUR_FAULT}") if failed else None

    def _has_other_batch(self) -> bool:
        """Whether only the calls themselves are still needed, and not another batch or
        its noise.
        """
        models, purpose = list(self.job.models), self._purpose(self._group)
        given = [self._earlier.get(id(model)) for model in models]
        if models and all(call is not None and call.complete for call in given):
            return True
        return self._noise_floors.cover(models, purpose, self.job.steps)

    def _end(self) -> None:
        self._earlier = {}
        self._begin((), None, False)

    def _unit_ended(self) -> bool:
        """Whether there is an answer."""
        update_known = self._update is None or bool(self._updates or self._declined)
        frozen_known = self._frozen.asked is None or self._frozen.seen
        if update_known and frozen_known and (not self._recording or self._verdicts):
            return True
        self._calls = []
        if self._recording == BATCH and self._earlier:
            self._recording = COMPARE
        return False

    def _answer(self, called: list[Candidate], update: Candidate | None) -> Checked:
        refused = dict(self._refused)
        sound = [candidate for candidate in called if candidate.id not in refused]
        verdict = self._worst(sound)
        if not verdict.passed:  # it could not be compared: only what is exact anyway may go on
            risky = [c for c in sound if not _exact_anyway(c)]
            refused.update({candidate.id: verdict for candidate in risky})
            sound = [candidate for candidate in sound if candidate.id not in refused]
            verdict = GuardVerdict(True, verdict.reason)
        if update is not None:
            told = self._of_update()
            if not told.passed:
                refused[update.id] = told
            elif not called:
                verdict = told
        idle = dict(self._idle)
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
            refused.update({c.id: failure for c in acting if not _beside_calls(c)})
            sound = [candidate for candidate in sound if candidate.id not in refused]
        return Checked(sound, refused, verdict, idle)

    def _of_update(self) -> GuardVerdict:
        verdicts = list(self._updates.values())
        failed = next((verdict for verdict in verdicts if not verdict.passed), None)
        if failed is not None:
            return failed
        if self._declined and not verdicts:  # one optimizer that takes it is enough
            return GuardVerdict(False, self._declined)
        if verdicts:
            return max(verdicts, key=lambda verdict: verdict.error or 0.0)
        reason = next(iter(self._not_compared.values()), "no update of an optimizer was seen")
        return GuardVerdict(True, f"{NOT_COMPARED}{reason}")

    def _worst(self, group: Sequence[Candidate]) -> GuardVerdict:
        """The worst verdict on any model; what could not be compared must be exact anyway."""
        exact = all(map(_exact_anyway, group))
        verdicts = list(self._verdicts.values())
        failed = next((verdict for verdict in verdicts if not verdict.passed), None)
        if failed is not None:
            return failed
        reason = next(
            (why for key, why in self._not_compared.items() if key not in self._verdicts), ""
        )
        if verdicts and (exact or not reason):
            return max(verdicts, key=lambda verdict: verdict.error or 0.0)
        reason = reason or "no call of a model with a backward pass was seen"
        return GuardVerdict(exact, f"{NOT_COMPARED}{reason}")

    def _possible(self, candidate: Candidate) -> GuardVerdict | None:
        """Boosts of loading guarantee the samples by their own rules, so one need only be
        applicable here.
        """
        refused = self._all_on([candidate])
        self.booster.off(candidate.id)
        return refused.get(candidate.id)

    def frozen_call(
        self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """A call of a model that is not trained, compared on demand."""
        with ExitStack() as hooked:
            begun = self.booster.recorder.safely("guard", self._frozen.begin, model, hooked)
            output = self.called(model, call, args, kwargs)
        if begun is not None:
            with self._repeating():
                given = begun, model, args, kwargs, output
                self.booster.recorder.safely("guard", self._frozen.compare, *given)
        return output

    # Calls --------------------------------------------------------------------------------------

    def call(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A root model's call in training, recorded on demand.

        If it finds no memory beside what the Guard holds, that is dropped, and the call is made
        once more: neither the program nor a boost is to blame for it.
        """
        recorded: RecordedCall | None = None
        hooked = ExitStack()

        def in_room(*args: Any, **kwargs: Any) -> Any:
            nonlocal recorded
            try:
                return call(*args, **kwargs)
            except headroom.OUT_OF_MEMORY:
                holds = recorded is not None or self._calls or self._earlier
                if not holds or world_size() > 1:  # other ranks would not make the call again
                    raise
            # Outside the handler, so what the failed call held is free.
            hooked.close()
            self.booster.recorder.safely("guard", self._give_way, recorded)
            recorded = None
            return call(*args, **kwargs)

        with hooked:
            recording = bool(self._recording)
            if recording and not self._passes_over(args, kwargs):
                recorded = self._record(model, args, kwargs, hooked)
            output = self.called(model, in_room if recording else call, args, kwargs)
        if recorded is not None:
            self.booster.recorder.safely("guard", self._finish, recorded, output)
        return output

    def called(
        self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """A call of a model, which is repeated as written if it raises under a boost."""
        if self.on:
            return self._failed_calls.call(model, call, args, kwargs)
        return call(*args, **kwargs)

    def _passes_over(self, args: Any, kwargs: Any) -> bool:
        """Whether a boost in question does nothing in this call, so the next one may show more."""
        if self._passed_over >= MOST_PASSED_OVER:
            return False
        asked = [getattr(load(candidate.id), "acts_on", None) for candidate in self._group]
        passes = any(
            not self.booster.recorder.safely("acts on", acts_on, args, kwargs)
            for acts_on in asked
            if acts_on is not None
        )
        self._passed_over += passes
        return passes

    def _record(
        self, model: torch.nn.Module, args: Any, kwargs: Any, hooked: ExitStack
    ) -> RecordedCall | None:
        try:
            reason = replays.not_repeatable(model)
            reason = reason or headroom.lack_for_call(model)
            if not self._refused_call(model, reason):
                recorded = begin(model, args, kwargs, copies=model in self._written)
                recorded.shown = hooked.enter_context(own_hooks.watch(model, called=True))
                return recorded
        except headroom.OUT_OF_MEMORY:
            self._out_of_memory()
        except Exception as error:
            self.booster.recorder.fault("guard", error)
            self._refused_call(model, first_line(error))
        return None

    def _finish(self, recorded: RecordedCall, output: Any) -> None:
        """Keep the call for its backward pass, if there is room for it."""
        reason = headroom.lack_for_call(recorded.model, output, self._calls, recorded.shown)
        if self._refused_call(recorded.model, reason):
            return
        try:
            finish(recorded, output, values=self._recording == COMPARE)
        except headroom.OUT_OF_MEMORY:
            self._out_of_memory()
        else:
            self._calls = [*self._calls[-MOST_WAITING:], recorded]

    def _give_way(self, recorded: RecordedCall | None) -> None:
        """Put everything back as it was before this call, and free what the Guard holds."""
        if recorded is not None:
            recorded.before()
        self._out_of_memory()
        self._earlier = {}
        if self.job.device != "cpu":
            getattr(torch, self.job.device).empty_cache()

    def _out_of_memory(self) -> None:
        """There is no room for what the Guard keeps: record nothing more for this question."""
        self._recording, self._calls = 0, []
        for model in self.job.models:
            self._not_compared[id(model)] = headroom.TOO_LITTLE

    def _refused_call(self, target: object, reason: str | None) -> bool:
        """Record the reason not to compare this model or optimizer; returns whether there
        is one.
        """
        if reason is not None:
            self._not_compared[id(target)] = reason
        return reason is not None

    def _comparable(self, recorded: RecordedCall) -> bool:
        """Whether it can be compared now; where inputs were written to, the next call's may be."""
        reason = recorded.refusal
        if reason == replays.WRITTEN and recorded.model not in self._written:
            self._written.add(recorded.model)
            return False
        return not self._refused_call(recorded.model, reason)

    def backward_ended(self) -> None:
        """Compare if a check is under way: gradients are available and the weights unchanged."""
        if not self._recording or self.replaying or self.job.inside_backward():
            return
        finished = [recorded for recorded in self._calls if recorded.used]
        self._calls = [recorded for recorded in self._calls if not recorded.used]
        for recorded in finished:
            recorded.goes_on = self.job.graph_created
        ready = [call for call in finished if self._comparable(call)]
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
        with self._repeating():
            verdict = self._judge(ready)
            if self._looking and verdict is not None and not verdict.passed:
                self._find_wrong(ready, verdict)
        if verdict is not None:
            self._verdicts.update({id(recorded.model): verdict for recorded in ready})

    def _judge(self, calls: list[RecordedCall]) -> GuardVerdict | None:
        """Compare the program with and without the boosts in question, over all these calls.

        None if they cannot be compared.
        """
        worst: GuardVerdict | None = None
        for recorded in calls:
            rounding = [c for c in self._group if c.boost.risk is not Risk.EXACT]
            if recorded.third and rounding:
                reason = f"{NOT_COMPARED}the loss may use third derivatives"
                if self._calls_boosted:  # they are on, and nothing can be said of them
                    self._wrong = [candidate.id for candidate in rounding], reason
                    return GuardVerdict(False, reason)
                self._refuse(rounding, GuardVerdict(False, reason))
            try:
                verdict = self._judge_call(recorded)
            except headroom.OUT_OF_MEMORY:
                self._out_of_memory()
                return None
            except Exception as error:
                verdict, why = None, first_line(error)
                if _is_ours(error):
                    self.booster.recorder.fault("guard", error)
            else:
                why = "the same call of the model gave two different results"
            if verdict is None:
                self._not_compared[id(recorded.model)] = why
                return None
            if worst is None or not verdict.passed or (verdict.error or 0) > (worst.error or 0):
                worst = verdict
            if not verdict.passed:
                break
        return worst

    def _refuse(self, group: Sequence[Candidate], verdict: GuardVerdict) -> None:
        self._refused.update({candidate.id: verdict for candidate in group})
        self._group = [candidate for candidate in self._group if candidate.id not in self._refused]

    def _judge_call(self, recorded: RecordedCall) -> GuardVerdict | None:
        """None if the repeated call does not give the same."""
        as_run = guard.reference(recorded)
        if as_run is None:
            return None
        if not self._calls_boosted:
            return self._narrow(recorded, as_run)
        self._all_off(self._group)
        try:
            written = again(recorded)
            return self._compared(recorded, self._group, written, as_run)
        finally:
            refused = self._all_on(self._group)
            if refused:
                reason = next(iter(refused.values())).reason
                ids = [candidate.id for candidate in self._group]
                self._unsound(ids, f"it could not be switched on again: {reason}")

    def _narrow(self, recorded: RecordedCall, written: RepeatedCall) -> GuardVerdict:
        """Refuse the boosts that this call shows to be wrong; returns the verdict on the rest.

        The exact boosts come first, by the rule for exact ones; then boosts that round, beside
        these. Boosts that draw other random numbers come last, beside all others, since their rule
        sees less.
        """
        sound = self._that_apply([c for c in self._group if _beside_calls(c)])
        verdict = GuardVerdict(True, "nothing that is on acts on the model's calls", 0.0)
        self._refuse_cuts(recorded, written)
        exact, rounding, redraw = _tiers(self._group)
        under: list[Candidate] = []
        for tier in (exact, rounding, redraw):
            if tier is rounding and rounding:  # beside these, by their rule, more may pass
                rounding += [c for c in exact if self._only_differs(c)]
            if tier is redraw and redraw and highest_risk(sound) != "exact":
                boosted = self._boosted(recorded, sound)
                if isinstance(boosted, RepeatedCall):
                    written, under = boosted, list(sound)
            passed, told = self._passing(recorded, sound, tier, written, under)
            sound += passed
            if told is not None and (told.error or 0.0) >= (verdict.error or 0.0):
                verdict = told
        self._group = sound
        for candidate in sound:
            self._refused.pop(candidate.id, None)
        return verdict

    def _only_differs(self, candidate: Candidate) -> bool:
        """It was refused because its results differ, not because it fails."""
        verdict = self._refused.get(candidate.id)
        return verdict is not None and not verdict.failed and verdict.error is not None

    def _passing(
        self,
        recorded: RecordedCall,
        base: list[Candidate],
        group: list[Candidate],
        written: RepeatedCall,
        under: list[Candidate],
    ) -> tuple[list[Candidate], GuardVerdict | None]:
        """(the boosts of the group that pass beside the base, the verdict on them).

        under: the boosts under which `written` was made.
        """
        group = self._that_apply(group)
        if highest_risk([*base, *group]) == "exact":  # their rule has refused these already
            group = [candidate for candidate in group if candidate.id not in self._refused]
        if not group:
            return [], None
        verdict = self._compared(recorded, [*base, *group], written, None, group, under)
        if verdict.passed:
            return group, verdict
        if len(group) == 1:
            self._refuse(group, verdict)
            return [], None
        # One wrong boost is the usual case, and the likeliest one is known: without it the others
        # pass at once.
        suspect = max(group, key=self._suspicion)
        others = [candidate for candidate in group if candidate is not suspect]
        passed, told = self._passing(recorded, base, others, written, under)
        if len(passed) == len(others):
            if suspect.id not in self._refused:
                self._refuse([suspect], verdict)
            return passed, told
        more, of_suspect = self._passing(recorded, [*base, *passed], [suspect], written, under)
        return [*passed, *more], of_suspect or told

    def _suspicion(self, candidate: Candidate) -> tuple[bool, bool, float]:
        """How likely it is that this one makes a call differ: for comparison with others."""
        idle = candidate.id in self._idle
        return candidate.id in self._refused, not idle, candidate.promise

    def _that_apply(self, group: list[Candidate]) -> list[Candidate]:
        """The boosts that can be switched on here; the others are refused with their
        own reasons.
        """
        refused = self._all_on(group)
        self._all_off([candidate for candidate in group if candidate.id not in refused])
        for candidate in group:
            if candidate.id in refused:
                self._refuse([candidate], refused[candidate.id])
        return [candidate for candidate in group if candidate.id not in refused]

    def _compared(
        self,
        recorded: RecordedCall,
        candidates: Sequence[Candidate],
        written: RepeatedCall,
        boosted: RepeatedCall | GuardVerdict | None,
        judged: Sequence[Candidate] | None = None,
        under: Sequence[Candidate] = (),
    ) -> GuardVerdict:
        """Compare the call as written with the one under these boosts.

        written: the call as written, or None to make it here. judged: the boosts whose rules apply,
        or None for all. under: the boosts that `written` was made under.
        """
        judged = candidates if judged is None else judged
        purpose, risk = self._purpose(judged), highest_risk(judged)
        if boosted is None:
            boosted = self._boosted(recorded, candidates)
            if isinstance(boosted, RepeatedCall) and not purpose.redraws:
                sure = guard.surely(written, boosted, risk)
                if sure is not None:
                    return sure
        if isinstance(boosted, GuardVerdict):
            return boosted
        compared = _where_used(recorded, candidates, written, boosted)
        noise_floor = self._noise_floor(recorded, written, purpose, compared)
        verdict = guard.verdict(*compared, noise_floor, risk, purpose.redraws)
        exact = risk == "exact" and not any(c.boost.cuts_outputs for c in judged)
        if exact or not recorded.drew or verdict.passed is not purpose.redraws:
            return verdict
        if recorded.has_dropout is False and not purpose.redraws:
            return verdict  # it would be the same comparison
        still = self._without_dropout(recorded, written, candidates, under, purpose)
        if still is None or purpose.redraws or not still.passed:
            return still or verdict
        return still if guard.as_redrawn(recorded, written, verdict) else verdict

    def _noise_floor(
        self,
        recorded: RecordedCall,
        written: RepeatedCall,
        purpose: NoiseFloorPurpose,
        compared: tuple[RepeatedCall, RepeatedCall],
    ) -> NoiseFloor:
        """The noise floor for this purpose, measured now if it is not known.

        compared: the call as written and under a boost, which are judged by it. What rounding does,
        the dearest part, is left out if the boost fails anyway.
        """
        model, steps = recorded.model, self.job.steps
        noise_floor = self._noise_floors.get(model, purpose, steps)
        if noise_floor is not None:
            return noise_floor
        if purpose.rounds and not purpose.redraws:
            unrounded = purpose._replace(rounds=False)
            noise_floor = self._noise_floor(recorded, written, unrounded, compared)
            if guard.too_far(*compared, noise_floor):
                return noise_floor
        other_batch = self._earlier.get(id(model))
        known = self._noise_floors.known(model, purpose, steps)
        noise_floor = guard.noise_floor(recorded, written, other_batch, *purpose, known=known)
        self._noise_floors.add(model, purpose, steps, noise_floor)
        return noise_floor

    def _refuse_cuts(self, recorded: RecordedCall, written: RepeatedCall) -> None:
        """Refuse the boosts that leave out what the model's result depends on.

        Each is compared alone and without dropout: what other masks change would hide it.
        """
        for candidate in [c for c in self._group if c.boost.cuts_outputs]:
            purpose = self._purpose([candidate])._replace(redraws=False)
            verdict = self._without_dropout(recorded, written, [candidate], (), purpose)
            if verdict is None:
                reason = f"{NOT_COMPARED}the model cannot be called without dropout"
                verdict = GuardVerdict(False, reason)
            if not verdict.passed:
                self._refuse([candidate], verdict)

    def _without_dropout(
        self,
        recorded: RecordedCall,
        as_written: RepeatedCall,
        candidates: Sequence[Candidate],
        under: Sequence[Candidate],
        purpose: NoiseFloorPurpose,
    ) -> GuardVerdict | None:
        """The verdict on these boosts without dropout, by the noise floor with it.

        None if compiled or recorded code would have to be made again for it.
        """
        active = [*(c.boost for c in candidates), *self.booster.active().values()]
        if any(boost.compiles for boost in active) or not can_run_without_dropout(recorded.model):
            return None
        written = self._boosted(recorded, under, still=True)
        boosted = self._boosted(recorded, candidates, still=True)
        if isinstance(written, GuardVerdict) or isinstance(boosted, GuardVerdict):
            return None
        compared = _where_used(recorded, candidates, written, boosted)
        noise_floor = self._noise_floor(recorded, as_written, purpose, compared)
        told = guard.verdict(*compared, noise_floor, highest_risk(candidates), redraws=False)
        return replace(told, reason=f"{told.reason}, without dropout")

    def _purpose(self, candidates: Sequence[Candidate]) -> NoiseFloorPurpose:
        in_question = [*candidates, *self._group]
        return purpose_of(candidates, in_question, self.booster.active())

    def _boosted(
        self, recorded: RecordedCall, candidates: Sequence[Candidate], still: bool = False
    ) -> RepeatedCall | GuardVerdict:
        """The call under these boosts, or why it could not be made. still: without dropout."""
        refused = self._all_on(candidates)
        if refused:
            self._all_off(candidates)
            return next(iter(refused.values()))
        try:
            for _ in range(4):  # a boost that needs some calls to start is compared after them
                if not any(self.booster.steps_to_ready(candidate.id) for candidate in candidates):
                    break
                again(recorded)
            boosted = again(recorded, still=still)
            if still:
                return boosted
            # What does not act on the model's calls cannot tell after one of them.
            called = [
                c
                for c in candidates
                if c.boost.moment is Moment.MODEL and not c.boost.outside_calls
            ]
            for name in [candidate.id for candidate in called]:
                self._idle.pop(name, None)
                idle = self.booster.idle(name)
                if idle is not None:
                    self._idle[name] = idle
            return boosted
        except headroom.OUT_OF_MEMORY:  # beside what the Guard holds: it need not fail without
            self._out_of_memory()
            return GuardVerdict(False, f"{NOT_COMPARED}{headroom.TOO_LITTLE}")
        except Exception as error:
            return GuardVerdict(False, first_line(error), failed=True)
        finally:
            self._all_off(candidates)

    def _all_on(self, candidates: Sequence[Candidate]) -> dict[str, GuardVerdict]:
        """Switch these on; returns those that did not take hold, with their own reasons."""
        refused = {}
        for candidate in candidates:
            note = self.booster.on(candidate.order)
            if note is not None:
                failed = note.state == "failed"
                refused[candidate.id] = GuardVerdict(False, note.reason, failed=failed)
        return refused

    def _all_off(self, candidates: Sequence[Candidate]) -> None:
        for candidate in reversed(candidates):
            self.booster.off(candidate.id)

    # Updates ------------------------------------------------------------------------------------

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights if a boost of the update is to be checked."""
        if self._update is not None:
            reason = headroom.lack_for_update(optimizer)
            if self._refused_call(optimizer, reason):
                return
            try:
                self._before = WeightsBefore(optimizer)
            except headroom.OUT_OF_MEMORY:
                self._no_memory_for_update(optimizer)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The program's own update is done: repeat it under the boost, and compare."""
        before, self._before = self._before, None
        if before is None or before.optimizer is not optimizer or self._update is None:
            return
        candidate, began = self._update, time.perf_counter()

        def apply() -> Callable[[], None]:
            return load(candidate.id).apply(self.job, optimizer, dict(candidate.params)).undo

        try:
            with self._own_memory():
                verdict = before.verdict(apply)
        except Declined as reason:
            self._declined = str(reason)
            return
        except headroom.OUT_OF_MEMORY:
            self._no_memory_for_update(optimizer)
            return
        except Exception as error:
            verdict = GuardVerdict(False, first_line(error), failed=True)
        finally:
            self.own_s += time.perf_counter() - began
        if verdict is not None:
            self._updates[id(optimizer)] = verdict

    def _no_memory_for_update(self, optimizer: torch.optim.Optimizer) -> None:
        self._refused_call(optimizer, headroom.TOO_LITTLE)
        self._update = None  # no other update is compared for this question

    # Looking after a run ------------------------------------------------------------------------

    def look_at(self, kept: Sequence[Candidate]) -> None:
        """Compare the next calls, made under all of these, with the program as written."""
        self._noise_floors.forget()
        called, frozen = _called(kept)
        self._begin(called, None, True)
        self._frozen.ask(frozen, True)
        self._looking = bool(kept)

    def answered(self) -> bool:
        """Whether the look has its answer; called at the end of each unit."""
        return not self._looking or self._unit_ended()

    def looked(self) -> tuple[bool, list[str], str]:
        """End the look; returns (whether all was found sound, the boosts that are wrong, why)."""
        verdicts = list(self._verdicts.values())
        wrong, reason = self._wrong
        if self._frozen.asked is not None and self._frozen.seen:
            verdicts.append(self._frozen.verdict)
            if not self._frozen.verdict.passed:
                wrong = [*wrong, self._frozen.asked.id]
                reason = reason or self._frozen.verdict.summary
        passed = bool(verdicts) and all(verdict.passed for verdict in verdicts)
        self._end()
        return passed, wrong, reason

    def _find_wrong(self, calls: list[RecordedCall], verdict: GuardVerdict) -> None:
        """The kept boosts are no longer sound together: check each alone to find the wrong ones."""
        if verdict.error is None:
            return
        kept = list(self._group)
        wrong: list[str] = []
        self._all_off(kept)
        try:
            with suppress(headroom.OUT_OF_MEMORY):
                wrong = [item.id for item in kept if not self._sound_alone(calls, item)]
        finally:
            self._all_on(kept)
            self._wrong = wrong or [candidate.id for candidate in kept], verdict.summary

    def _sound_alone(self, calls: list[RecordedCall], candidate: Candidate) -> bool:
        """One boost against the program as written, on calls that were made under several."""
        return all(
            self._compared(recorded, [candidate], again(recorded), None).passed
            for recorded in calls
        )


def _called(group: Sequence[Candidate]) -> tuple[list[Candidate], Candidate | None]:
    """(boosts that act on the trained models' calls, one that acts on calls of the others)."""
    called = [candidate for candidate in group if candidate.boost.moment in CALLED]
    frozen = next((c for c in called if c.boost.moment is Moment.FROZEN), None)
    return [c for c in called if c.boost.moment is not Moment.FROZEN], frozen


def _where_used(
    recorded: RecordedCall,
    candidates: Sequence[Candidate],
    written: RepeatedCall,
    boosted: RepeatedCall,
) -> tuple[RepeatedCall, RepeatedCall]:
    """Both repeated calls as they are compared: outputs that the loss does not use may differ under
    some boosts.
    """
    if not any(candidate.boost.cuts_outputs for candidate in candidates):
        return written, boosted
    return replays.where_used(recorded, written), replays.where_used(recorded, boosted)


def _tiers(group: Sequence[Candidate]) -> list[list[Candidate]]:
    """The boosts that act on calls, grouped by what they may change: nothing (exact), rounding,
    random numbers.
    """
    called = [candidate for candidate in group if not _beside_calls(candidate)]
    redraw = [candidate for candidate in called if candidate.boost.redraws]
    others = [candidate for candidate in called if not candidate.boost.redraws]
    exact = [candidate for candidate in others if candidate.boost.risk is Risk.EXACT]
    rounding = [candidate for candidate in others if candidate.boost.risk is not Risk.EXACT]
    return [exact, rounding, redraw]


def _exact_anyway(candidate: Candidate) -> bool:
    """Whether it is exact in every program, so a call that cannot be compared does not matter."""
    return candidate.boost.risk is Risk.EXACT and not candidate.boost.cuts_outputs


def _is_ours(error: BaseException) -> bool:
    """Whether flatout's own code raised it, and not the program or torch on its behalf."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and Path(frames[-1].filename).is_relative_to(OURS)
    return ours and not isinstance(error, replays.OtherOutputsError)


def _beside_calls(candidate: Candidate) -> bool:
    """Whether it leaves a call's arithmetic alone, as an allocator or a collector does."""
    return candidate.boost.moment is Moment.START and candidate.boost.risk is Risk.EXACT
