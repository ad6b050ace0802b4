"""A run that is tuned while it trains: it hands each step to the tuning and does what that asks
for.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.attach import tracebacks
from flatout_agent.attach.chain import Depth, without
from flatout_agent.boost import Switch
from flatout_agent.boosts import names
from flatout_agent.job import Job
from flatout_agent.live import checks, decide, idle, op_shares, peers, rechecks, run_length
from flatout_agent.live.background_compile import BackgroundCompile
from flatout_agent.live.budget import Budget
from flatout_agent.live.calls import RecordedCall, again
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.failed_calls import CALLED, first_line
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.recipe import Tuning
from flatout_agent.live.state import Checked, Story, Tick
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import worker_load
from flatout_agent.watch.interruptions import watch_saving
from flatout_agent.watch.job_facts import JobNotes
from flatout_agent.watch.profile import compile
from flatout_agent.watch.run import RunWatch, compile_counters
from flatout_agent.watch.step_calls import StepCalls
from flatout_agent.watch.tensors import synchronize, tensors_in
from flatout_agent.watch.training_calls import is_frozen, is_of_training
from flatout_agent.wire import pulse as layout

MICRO_STEP_S = 1.0
"""Steps longer than this are measured by micro-step, if they have several."""
NEVER = 1 << 62
NOT_CLEAN = -1
"""What a rank tells in place of a unit's size if it was not clean."""
FIRST_STEPS = 8
"""Steps of a throw-away run that are recorded one by one: for later ones only the times matter."""
WAIT_UNITS = 5
"""Units over which the time spent waiting for data is measured again."""
CAPTURED = "the script replays CUDA graphs of its own, in which nothing can be switched"
OF_ANOTHER = "another rank's guard refuses it"
JOB_STEPS = 2
"""The job is known after this many steps."""


class LiveWatch(RunWatch):
    """Hands steps to a `Tuning` and is its `Machinery`. It also keeps a run's counts."""

    light = False

    def __init__(
        self,
        job: Job,
        booster: Booster,
        recorder: Recorder,
        orders: wire.LiveOrders,
        scratch: bool = False,
    ) -> None:
        """scratch: what the program saves is redirected, permanently from its first step on."""
        super().__init__(job, booster, recorder)
        self.orders = orders
        self._scratch = scratch
        self.notes = JobNotes()
        self.peers = peers.Peers()
        self.budget = Budget(orders, self.now)
        self._on = [order for order, _ in booster.orders]
        self.tuning = Tuning(self, orders, self.budget)
        self.story: Story | None = self.tuning.run(tuple(self._on))
        self.checks = checks.Checks(job, booster, self._unsound, self.agree)
        self.rechecks = rechecks.Rechecks(job, self.checks, self.agree, self._unsound)
        self.recompiles = 0
        self._by_micro_step = False
        self._last: float | None = None
        self._count_from_here()
        self._step_calls = StepCalls()
        self._epoch_began = False
        self._buffered: int | None = None
        self._step_s: list[float] = []
        self._shares: dict[str, float] = {}
        self._operations = 0
        self._idle_share: float | None = None
        self._updates = op_shares.Updates()
        self.background = BackgroundCompile()
        self._waited_at: tuple[float, float] | None = None  # seconds waited at a look, and when
        self._workers_share: float | None = None
        self._run_basis = ""
        self._raised = False
        self._captured = False
        """The script has recorded a CUDA graph of its own."""
        self._settled_at: int | None = None
        self._saved_settled_s = 0.0
        """Seconds saved in the steps between decisions, up to the last one."""
        self._spent = Spent()
        self._unwatch_saving = watch_saving(self._dirty)
        self._report_at = NEVER  # a report lets go of the boosts that took hold
        job.handovers = weakref.WeakSet()

    @property
    def quiet(self) -> bool:  # type: ignore[override]  # of a class that has a constant
        """Everything is decided, and the Guard does not look at the next step."""
        return self.story is None and not self.rechecks.looking and not self._by_micro_step

    @property
    def reads_steps(self) -> bool:  # type: ignore[override]  # of a class that has a constant
        return self.beat is not None or self.history is not None

    def _count_from_here(self) -> None:
        """The counts of the unit and the step under way."""
        self._finite: dict[torch.device, torch.Tensor] = {}
        self._clean = True
        self._size = 0
        self._went_back = False
        """A backward pass has ended the micro-step, which may call models more than once."""

    # What discovery reports ---------------------------------------------------------------------

    def loader_found(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.notes.loader(loader)

    def epoch_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self._catch_up()  # by the loader that has fed the steps so far
        super().epoch_begins(loader)
        self._clean, self._epoch_began = False, True

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._clean = False
        self.notes.model(model)
        if self.story is None and not self.checks.failed_calls.on:
            return
        number = self.job.models.index(model)
        self.job.wrap_call(model, Depth.WATCH, lambda call: self._watched(model, number, call))

    def frozen_found(self, model: torch.nn.Module) -> None:
        self.notes.frozen_model(model)
        if self.story is not None or self.checks.failed_calls.on:
            self.job.wrap_call(model, Depth.WATCH, lambda call: self._frozen_call(model, call))

    def _frozen_call(self, model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.checks.replaying or self.job.inside_backward() or self._capturing():
                return call(*args, **kwargs)
            return self.checks.frozen_call(model, call, args, kwargs)

        return watched

    def _watched(
        self, model: torch.nn.Module, number: int, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.checks.replaying or self.job.inside_backward() or self._capturing():
                return call(*args, **kwargs)
            if not is_of_training(model, args, kwargs):
                return self._without_gradients(model, call, args, kwargs)
            if self.story is not None:
                self.recorder.safely("call", self._training_begins, number, args, kwargs)
            if self.job.steps:
                return self.checks.call(model, call, args, kwargs)
            return self.notes.first_call(number, lambda: call(*args, **kwargs))

        return watched

    def _training_begins(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next(tensors_in((args, kwargs)), None)
        if self._by_micro_step and self._went_back and self._last is not None:
            self._unit_ended()
        if first is not None:
            self.notes.inputs(number, tuple(first.shape))
            self.notes.padding(number, args, kwargs)
            self._size += first.numel()

    def _without_gradients(
        self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """A call for an evaluation, or one that belongs to each step, such as a policy acting."""
        seen = model, (args, kwargs), self.job.steps, self._epoch_began
        if is_frozen(model) or (
            self.story is not None
            and self.recorder.safely("step calls", self._step_calls.belong, *seen)
        ):
            return self.checks.failed_calls.call(model, call, args, kwargs)
        self._clean = False
        return self.checks.failed_calls.call(model, call, args, kwargs)

    def _capturing(self) -> bool:
        """Whether the script records a CUDA graph of its own: its calls are only passed on."""
        if not self.notes.capturing():
            return False
        self._captured = True
        return True

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if self._capturing():
            return
        self.record.backward()
        self._went_back = True
        if self.story is not None:  # one number a device: nothing waits, and none of them grows
            finite = loss.detach().isfinite().all()
            self._finite[finite.device] = finite & self._finite.get(finite.device, finite)

    def backward_ended(self) -> None:
        if not self._capturing():
            self.checks.backward_ended()

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        if self._capturing():
            return
        self.record.optimizer_starts()
        self._updates.begin()
        self.checks.updates.starts(optimizer)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        if self._capturing():
            return
        if not self.record.closure:  # no closure that computes the loss
            self._updates.end()
        self.checks.updates.ends(optimizer)
        if len(self.notes.optimizers) < len(self.job.optimizers):
            self.notes.optimizer(optimizer)

    def _dirty(self) -> None:
        self._clean = False

    # Steps --------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.story is not None and self.beat is not None:
            self.beat.flag(layout.TUNING)
        super().step()
        if self._scratch and self.job.steps <= FIRST_STEPS:
            if self.job.steps == 1:  # what is written from now on is the training's
                from flatout_agent import overlay

                overlay.mark_first_step()
            self.recorder.write(wire.StepTaken(self.job.steps - 1, "warmup", 0.0))
        if self._capturing() or self.story is None:
            return
        if self._captured:
            self.tuning.give_up(CAPTURED)
            self.switch(self.tuning.state.on)
            self._settled()
            return
        self._epoch_began = False
        self._updates.step()
        if self.job.steps == JOB_STEPS:
            self._choose_unit()
        if self._by_micro_step:
            self._clean = False  # the update itself belongs to no micro-step
        else:
            self._unit_ended()

    def _catch_up(self) -> None:
        """Count the steps that were not told, as it was quiet."""
        if self.job.steps > self._counted_to:
            self._count(self.ended)

    def _choose_unit(self) -> None:
        """Long steps of several micro-steps are measured by micro-step."""
        now = time.perf_counter()
        step_s = self.agree(now - self._last if self._last is not None else 0.0, "max")
        self._by_micro_step = self.last_step.micro_steps > 2 and step_s > MICRO_STEP_S
        if self._by_micro_step:
            self._last = now

    def _unit_ended(self) -> None:
        """Hand one unit to the session; the time that the session then takes is not
        the program's.
        """
        now = time.perf_counter()
        recompiles = compile_counters()[0]
        if self._last is not None:
            clean = self._clean and recompiles == self.recompiles
            self.recompiles = recompiles
            wall_s = now - self._last
            tick = Tick(max(1e-9, wall_s - self.checks.own_s), self._size, clean)
            if self._clean:
                self._spent.add(wall_s, self.tuning.state.written_s)
            self._step_s = [*self._step_s[-19:], tick.seconds]
            self._send(tick)
        elif self.story is not None:
            next(self.story)
        self._clean, self._size, self._went_back, self.checks.own_s = True, 0, False, 0.0
        self._buffered = None
        self._last = time.perf_counter()

    def _send(self, tick: Tick) -> None:
        assert self.story is not None
        try:
            if self.tuning.budget.ended:
                self.tuning.decisions.out_of_time()
                self._settled()
                return
            self.story.send(self._of_all_ranks(tick))
        except StopIteration:
            self._settled()
        except Exception as error:
            self.recorder.fault("live tuning", error)
            self.switch(self.tuning.state.on)
            self._settled()

    def _of_all_ranks(self, tick: Tick) -> Tick:
        """The unit with this rank's time: it is clean if it is on every rank.

        A rank may evaluate or save alone, or get a batch of another size. One that counts other
        units than the others would ask other questions than they do.
        """
        if self.peers.world == 1:
            return tick
        size = int(self.agree(tick.size if tick.clean else NOT_CLEAN, "min"))
        clean = size != NOT_CLEAN
        return Tick(tick.seconds, size if clean else tick.size, clean)

    def _settled(self) -> None:
        """Every decision is made: from now on the guard only looks after the run."""
        self.story = None
        again, self._settled_at = self._settled_at is not None, self.job.steps
        if again:  # something was taken out since, and the rest measured
            self.tell(self.summary())
            return
        self._finite = {}
        self._unwatch_saving()
        self.notes.close()
        self._forget(names())
        # Take off what only boosts need that are not on.
        kept = [candidate.boost for candidate in self.tuning.state.kept]
        if not any(boost.switch is Switch.ITERATOR for boost in kept):
            self.job.handovers = None
        # The program's compiled code would be compiled again without the layers.
        boosted, by_unit = self.checks.failed_calls.on, self._by_micro_step
        if not (boosted or by_unit or self.job.by_hand or compile.in_use()):
            for model in [*self.job.models, *self.job.frozen]:
                without(model, Depth.WATCH)
        self.tell(self.summary())
        if self.orders.stop:
            self.end_at_once()
        self.rechecks.begin(self.tuning.state.kept)

    def program_ends(self) -> None:
        self.background.end()
        if self.story is not None:
            error = tracebacks.ending()
            if error is not None:
                self.tuning.decisions.blame(first_line(error))
            if self._captured:
                self.tuning.give_up(CAPTURED)
            else:
                reason = "the program ended before it could be tried"
                self.tuning.decisions.left_over(reason)
        if self.job.steps:
            self.tell(self.summary())
        super().program_ends()

    def put_back(self) -> None:
        if self.story is not None:
            self.story.close()
            self.story = None
        self.switch(())
        self._unwatch_saving()
        self.notes.close()

    # What the session asks for ------------------------------------------------------------------

    def look_inside(self) -> Generator[None, Tick, None]:
        """Measure where the time of a step goes: the facts contain it from then on."""
        if self.tuning.state.kept:  # as it is now, not as it was
            self._waited_at = self.wait_s, time.perf_counter()
        operations = yield from op_shares.of_a_unit(self.checks)
        seconds = operations.seconds
        taken = worker_load.share(self.job)
        if taken is not None:
            self._workers_share = self.agree(taken, "max")
        for _ in range(WAIT_UNITS if self.tuning.state.kept else 0):
            yield
        if self.agree(float(bool(seconds)), "min"):
            unit_s = statistics.median(self._step_s)
            seconds["optimizer"] = self._updates.seconds / self.units_per_step()
            shares = op_shares.shares(seconds, unit_s)
            self._shares = {kind: self.agree(share, "first") for kind, share in shares.items()}
            self._operations = int(self.agree(float(operations.number), "max"))
        if self.job.device == "cuda":
            share = yield from idle.of_a_unit(
                self.synchronized_clock,
                self.tuning.state.now_s,
                lambda seconds: self.budget.lose(self.agree(seconds, "max")),
                self.job.first_device,
            )
            self._idle_share = self.agree(share, "first")

    def facts(self) -> wire.JobFacts:
        unit_s = sum(self._step_s) / max(1, len(self._step_s))
        if self.job.device != "cpu" and math.isfinite(written_s := self.tuning.state.written_s):
            unit_s = written_s  # the host's own times are those of queueing the work
        step_s = self.units_per_step() * unit_s
        wait_s, since = self._waited_at or (0.0, self.began or self.ended)
        trained_s = self.ended - since
        wait_share = min(1.0, (self.wait_s - wait_s) / trained_s) if trained_s > 0 else 0.0
        # All ranks must try the same boosts in the same order, which the facts decide.
        self.notes.by_hand = self.job.by_hand
        facts = self.notes.facts(
            micro_steps=self.record.mean_micro_steps(),
            step_s=self.agree(step_s, "max") or None,
            wait_share=self.agree(wait_share, "max"),
            workers_share=self._workers_share,
            shares=self._shares,
            operations=self._operations,
            idle_share=self._idle_share,
            noise=self._noise(),
        )
        return self.peers.facts_of_first(facts)

    def _noise(self) -> float | None:
        noise = self.tuning.state.noise
        return None if noise is decide.PRIOR else noise.deviation

    def tell(self, record: wire.Record) -> None:
        if isinstance(record, wire.Decided):
            self._forget([record.id])
        if self.peers.first:
            self.recorder.write(record)
            if isinstance(record, wire.Decided) and record.verdict in ("kept", "dropped"):
                self.recorder.write(self.summary())  # the program may be ended at any time

    def _forget(self, boosts: Sequence[str]) -> None:
        """Free what the boosts of these that are not kept hold for reuse."""
        kept_ids = {candidate.id for candidate in self.tuning.state.kept}
        for boost in boosts:
            if boost not in kept_ids:
                self.recorder.safely(f"forget {boost}", self.booster.forget, boost)

    def report(self) -> None:
        """The program as written is known: record what it is, and how long a step takes."""
        self.tell(wire.JobSeen(self.facts()))
        self.tell(self.summary())

    def steps(self) -> int:
        return self.job.steps

    def planned_steps(self) -> int | None:
        """Steps of the whole run, or None if unknown; asked within a step, below the loop that
        makes it.
        """
        micro_steps = self.record.mean_micro_steps()
        found = run_length.run_length(sys._getframe(), self.job.steps, micro_steps)
        steps = self.job.steps + found.steps_left if found is not None else -1
        self._run_basis = found.basis if found is not None else ""
        agreed = self.agree(float(steps), "first")
        return int(agreed) if agreed > 0 else None

    def units_per_step(self) -> float:
        """Units that make a step: its micro-steps, where those are measured."""
        return self.record.mean_micro_steps() if self._by_micro_step else 1.0

    def on(self) -> list[wire.BoostOrder]:
        return self._on

    def switch(self, on: Sequence[wire.BoostOrder]) -> None:
        """Switch to exactly these boosts: first switch the others off, newest first."""
        for order in reversed(self._on):
            if order not in on:
                self.booster.off(order.id)
        for order in on:
            if order not in self._on:
                self.booster.on(order)
        self._on, self._buffered = list(on), None
        moments = [module.BOOST.moment for _, module in self.booster.orders]
        self.checks.failed_calls.on = any(moment in CALLED for moment in moments)

    def compile_aside(self, candidate: Candidate) -> Generator[None, Tick, tuple[int, float]]:
        """Compile beside the program if possible; returns (units trained meanwhile, seconds)."""

        def compiled(recorded: list[RecordedCall]) -> None:
            self.booster.on(candidate.order)
            for call in recorded:
                again(call)

        if self.peers.world > 1 or not self.background.possible(self.job.device):
            return 0, 0.0
        yield from self.checks.give_calls(
            lambda calls: self.background.begin(lambda: compiled(calls))
        )
        return (yield from self.background.wait())

    def check(self, group: Sequence[Candidate]) -> Generator[None, Tick, Checked]:
        """Let the Guard check these boosts before their first real step, on every rank."""
        checked = yield from self.checks.check(group)
        for candidate in group:
            passed = candidate.id not in checked.refused
            if not self.agree(float(passed), "min") and passed:
                checked.refused[candidate.id] = GuardVerdict(False, OF_ANOTHER, 0.0, near=True)
            if candidate.id in checked.refused:
                refusal = checked.refused[candidate.id]
                near = bool(self.agree(float(refusal.near), "min"))
                checked.refused[candidate.id] = replace(refusal, near=near)
            if self.agree(float(candidate.id not in checked.idle), "max"):
                checked.idle.pop(candidate.id, None)  # it took hold on some rank
        checked.sound = [c for c in checked.sound if c.id not in checked.refused]
        return checked

    def _agreed(self, verdict: GuardVerdict) -> GuardVerdict:
        """A boost must pass on every rank. One that was compared on any has an error."""
        if self.agree(float(verdict.passed), "min"):
            return verdict
        wrong = not verdict.passed and verdict.error is not None
        error = (verdict.error or 0.0) if self.agree(float(wrong), "max") else None
        reason = OF_ANOTHER if verdict.passed else verdict.reason
        return replace(verdict, passed=False, reason=reason, error=error)

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, GuardVerdict]:
        """Let the guard compare all kept boosts with the program as written."""
        return self._agreed((yield from self.checks.check_together(kept)))

    def idle(self, boost: str) -> str | None:
        """Why it has not taken hold on any rank, as far as known."""
        reason = self.booster.idle(boost)
        return reason if self.agree(float(reason is None), "max") == 0.0 else None

    def steps_to_ready(self, boost: str) -> int:
        return int(self.agree(self.booster.steps_to_ready(boost), "max"))

    def buffered(self) -> int:
        """The number of batches that workers may have ready, which make as many steps look fast.

        It is asked for often: several ranks agree on it once a unit.
        """
        if self._buffered is None or self.peers.world == 1:
            loaders = self.job.loaders
            batches = sum(loader.num_workers * (loader.prefetch_factor or 0) for loader in loaders)
            self._buffered = int(self.agree(batches, "max"))
        return self._buffered

    def sound(self) -> bool:
        """Whether since the last question no loss was NaN or Inf, and no call raised."""
        finite, self._finite = self._finite, {}
        raised, self._raised = self._raised, False
        sound = not raised and all(map(bool, finite.values()))
        return bool(self.agree(float(sound), "min"))

    def synchronized_clock(self) -> float:
        began = time.perf_counter()
        synchronize(self.job)
        now = time.perf_counter()
        self._spent.waited(now - began, self.tuning.state.written_s)
        return now

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self.agree(time.time(), "first")

    def agree(self, value: float, how: str) -> float:
        """One value for all ranks. how: see `Peers.agree`."""
        return self.peers.agree(value, how)

    # Looking after the run ----------------------------------------------------------------------

    def _unsound(self, boosts: Sequence[str], reason: str) -> None:
        """The guard no longer holds for these boosts: take them out and say so.

        If one of them is being tried, that one is to blame, not the kept ones.
        """
        state, self._raised = self.tuning.state, True
        self._saved_settled_s += self._saved_since_settled()  # at the speed of until now
        if self._settled_at is not None:
            self._settled_at = self.job.steps
        tried = set(boosts) - set(state.kept_ids)
        for candidate in [kept for kept in state.kept if kept.id in boosts and not tried]:
            state.drop(candidate, None)
            step = self.job.steps
            self.tell(
                wire.Decided(candidate.id, "dropped", reason, params=candidate.params, step=step)
            )
        self.switch(state.on)
        if self.story is None and state.kept and math.isfinite(state.written_s):
            self.story = self.tuning.measure_kept()
            self._last = None

    def summary(self) -> wire.LiveSummary:
        """The current state of the tuning. Step times are those of units."""
        self._catch_up()
        state = self.tuning.state
        written_s, measured = state.written_s, math.isfinite(state.written_s)
        now_s = self._now_s()
        saved_s = 0.0
        if measured:
            saved_s = self._spent.units * written_s - self._spent.seconds
            saved_s += self._saved_settled_s + self._saved_since_settled()
            # The steps that the Guard has undone took their time, and trained nothing.
            saved_s -= self.rechecks.undone * self.units_per_step() * written_s
        verdict = state.verdict
        noise_floor = verdict.noise_floor if verdict is not None else None
        trained_s = self.ended - self.began if self.began is not None else 0.0
        return wire.LiveSummary(
            kept=tuple(state.on),
            settled=state.settled,
            steps=self.job.steps,
            written_ms=1000 * written_s if measured else None,
            now_ms=1000 * now_s if math.isfinite(now_s) else None,
            noise=self._noise(),
            pairs=state.pairs,
            saved_s=saved_s,
            lost_s=self.budget.lost_s,
            lost_late_s=self.budget.lost_late_s,
            run_steps=self.budget.steps,
            run_basis=self._run_basis,
            samples_per_s=self.samples / trained_s if trained_s and self.samples else None,
            micro_steps=self._by_micro_step,
            guard=verdict.summary if verdict is not None else "",
            guard_passed=verdict.passed if verdict is not None else None,
            gradient_error=verdict.error if verdict is not None else None,
            batch_noise=noise_floor.batch_noise if noise_floor is not None else None,
            own_noise=noise_floor.redrawn if noise_floor is not None else None,
            compared=self.tuning.comparer.compared,
        )

    def _now_s(self) -> float:
        """Seconds of a unit with what is kept, or NaN if that was not measured."""
        state = self.tuning.state
        return state.now_s if state.pairs or not state.kept else math.nan

    def _saved_since_settled(self) -> float:
        """Seconds saved since the last decision; 0 while anything is being measured."""
        gain_s = self.tuning.state.written_s - self._now_s()
        if self.story is not None or self._settled_at is None or not math.isfinite(gain_s):
            return 0.0
        return (self.job.steps - self._settled_at) * self.units_per_step() * gain_s


@dataclass
class Spent:
    """The time of units while boosts were tried, including all that the tuning did in them.

    Units with evaluation, saving or a new epoch are left out: they say nothing.
    """

    units: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, written_s: float) -> None:
        """Add one unit. `written_s`: its time as written, or NaN if not yet known."""
        if math.isfinite(written_s):
            self.units += 1
            self.seconds += seconds

    def waited(self, seconds: float, written_s: float) -> None:
        """The clock for an accelerator, read between two units after waiting for their work."""
        if math.isfinite(written_s):
            self.seconds += seconds
