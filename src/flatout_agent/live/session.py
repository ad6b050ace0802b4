"""A live tuning from its first step to its last decision.

A generator: each `yield` hands the program its next unit of work (a step, or a micro-step where
steps are made of many) and comes back with the `Tick` that says how long it took. So the whole
reads as a story although the program's own loop is in charge.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import replace

from flatout_agent import wire
from flatout_agent.boost import Moment, Risk, Switch
from flatout_agent.boosts import load
from flatout_agent.live import blocks, candidates, decisions, evaluation, guard, paired, together
from flatout_agent.live.blocks import Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate, Refusal
from flatout_agent.live.costs import Costs
from flatout_agent.live.machinery import Machinery, State, Story
from flatout_agent.live.pairs import Pairs
from flatout_agent.live.turns import Turns

Orders = list[wire.BoostOrder]

WARM_UNITS = 5
WARM_MOST_S = 20.0
LEARN_UNITS = 3
NOISE_PAIRS, FEW_NOISE_PAIRS = 4, 3
LONG_UNIT_S = 0.4
"""For units this long, fewer pairs must suffice."""
READY_S, LIVE_READY_S = 20.0, 300.0
"""How long a boost may take until it can show its gain: in a throw-away run, and in a real one,
where waiting costs nothing."""
LIKELY = 0.05
"""A gain that looks this large gets a second turn even where no time limit is given."""
RESTLESS = 0.1
"""Noise of a pair above which it is measured again under each boost that is kept: on a busy machine
fewer threads may bring it down to a tenth."""
FAR_SLOWER = math.log(0.8)
"""A boost that is slower by this much in two pairs gets no third: it costs the run too much, and to
drop one wrongly costs a gain, never a result."""


class Session:
    """One live tuning. `run` is the story; the rest are its chapters."""

    def __init__(self, machinery: Machinery, orders: wire.LiveOrders, budget: Budget) -> None:
        self.machinery = machinery
        self.orders = orders
        self.budget = budget
        self.state = State()
        self.pairs = Pairs(machinery, self.state, budget, orders.seed)
        self.costs = Costs(self.state, budget)
        self._turns = Turns()
        self._ratios: list[float] = []
        self._small: list[Candidate] = []
        """Boosts that may have gained a little, too little to be measured alone."""

    def run(self, planned: Sequence[wire.BoostOrder]) -> Story:
        """Decide on every boost that may be tried, then look after those that are kept."""
        unit_s = yield from self._warm()
        if self.budget.steps is None:
            self.budget.steps = self.machinery.planned_steps()
        self.pairs.accelerated = self.machinery.facts().device != "cpu"
        yield from self._program_noise(unit_s)
        yield from self.machinery.look_inside()
        facts = self.machinery.facts()
        self.costs.layers = sum(model.conv2d + model.matmul for model in facts.models)
        eligible, declined = candidates.candidates(facts, self.orders.allowed)
        eligible = [candidate for candidate in eligible if candidate.id not in self.orders.settled]
        for row in declined:
            if row.id not in self.orders.settled:
                self.machinery.tell(row)
        self.machinery.report()
        eligible = yield from self._take_plan(eligible, planned)
        yield from self._try_all(
            [candidate for candidate in eligible if not candidate.boost.evaluates]
        )
        yield from together.try_small_ones(self, self._small)
        yield from together.drop_redundant(self)
        for candidate in eligible:
            if candidate.boost.evaluates:
                yield from self._try_in_evaluation(candidate)
        yield from together.check(self)
        self.state.settled = True
        self.pairs.switch(self.state.on)

    def left_over(self, reason: str) -> None:
        """The program ends: report what was not tried, with the reason."""
        turns = self._turns
        waiting = [turns.trying, *(candidate for candidate, _ in turns.near), *turns.untried]
        for candidate in waiting:
            if candidate is not None and candidate.variant == 0 and candidate.id not in turns.open:
                self.tell(candidate, "untried", reason, why="program_ended")
        for candidate, answer in list(turns.open.values()):
            unclear = f"the program ended: {decisions.unclear(answer)}"
            self.tell(candidate, "untried", unclear, answer, why="program_ended")

    # The program as written ---------------------------------------------------------------------

    def _warm(self) -> Generator[None, Tick, float]:
        """Wait until units take about the same time; returns how long one takes."""
        ticks: list[Tick] = []
        began = time.perf_counter()
        while True:
            ticks.append((yield))
            last = [tick.seconds for tick in ticks[-WARM_UNITS:]]
            steady = len(ticks) > WARM_UNITS and max(last) <= 1.5 * statistics.median(last)
            if self.pairs.agreed(steady or time.perf_counter() - began > WARM_MOST_S):
                for tick in ticks[-WARM_UNITS:]:
                    self.pairs.sizes.add(tick)
                return statistics.median(last)

    def _program_noise(self, unit_s: float) -> Story:
        """The program against itself: how noisy a pair is, and how long a unit takes."""
        if self.pairs.switch(()):  # a plan is on, and units take another time without it
            yield
            unit_times = []
            for _ in range(LEARN_UNITS):
                tick = yield
                unit_times.append(tick.seconds)
            unit_s = statistics.median(unit_times)
        times = yield from self._against_itself((), unit_s)
        self.state.written_s = self.state.now_s = statistics.median(times)

    def _against_itself(
        self, on: Sequence[wire.BoostOrder], unit_s: float
    ) -> Generator[None, Tick, list[float]]:
        """Blocks under the same boosts: what differs between them is noise."""
        times: list[float] = []
        for _ in range(2 * (NOISE_PAIRS if unit_s < LONG_UNIT_S else FEW_NOISE_PAIRS)):
            block = yield from self.pairs.block(on, unit_s, blocks.LEAST_S, learn=not on)
            times.append(block.seconds)
        pairs = zip(times[::2], times[1::2], strict=True)
        self.state.pair_noise = paired.noise([math.log(a / b) for a, b in pairs])
        self.pairs.forget_noise()
        return times

    def _take_plan(
        self, eligible: list[Candidate], planned: Sequence[wire.BoostOrder]
    ) -> Generator[None, Tick, list[Candidate]]:
        """The plan's boosts are taken as they are, and checked with one pair."""
        plan = [Candidate(o.id, o.params, load(o.id).BOOST, 1.0) for o in planned]
        if not plan:
            return eligible
        ratio = yield from self.pairs.pair([], [candidate.order for candidate in plan])
        if ratio > -2 * self.state.pair_noise.deviation:
            self.state.kept = plan
            self.state.gains["plan"] = math.exp(ratio)
            self.state.now_s = self.state.written_s / math.exp(ratio)
            yield from together.check(self)
            for candidate in plan:
                self.tell(candidate, "kept", "in the plan, and one pair does not speak against it")
        kept_ids = {candidate.id for candidate in self.state.kept}
        return [candidate for candidate in eligible if candidate.id not in kept_ids]

    # Trying -------------------------------------------------------------------------------------

    def _try_all(self, eligible: list[Candidate]) -> Story:
        turns = self._turns = Turns(eligible)
        while True:
            kept_ids = [candidate.id for candidate in self.state.kept]
            candidate = turns.next(self.machinery.steps(), kept_ids)
            if candidate is None:
                return
            yield from self._wait(turns.due(candidate, self.machinery.steps()))
            verdict = yield from self._try(candidate)
            if verdict == "kept" and self.pairs.agreed(self.state.pair_noise.deviation > RESTLESS):
                yield from self._against_itself(self.state.on, self.state.now_s)
            turns.ended(candidate, verdict, self.machinery.steps(), len(self.state.kept))

    def _wait(self, steps: int) -> Story:
        """Train on before a second look, as far as there is time."""
        left_s, step_s = self.budget.left_s, self._step_s()
        if left_s is not None:
            steps = min(steps, int(left_s / 2 / step_s))
        if self.budget.steps is not None:
            steps = min(steps, (self.budget.steps - self.machinery.steps()) // 2)
        yield from self._train_on(int(self.machinery.agree(max(0, steps), "first")))

    def _try(self, candidate: Candidate) -> Generator[None, Tick, str]:
        """One boost on top of what is kept; returns its verdict, `near` for a second look."""
        if self._turns.hopeless(candidate):
            return "untried"
        refusal = yield from self._worth(candidate)
        if refusal is not None:
            return self._not_now(candidate, refusal)
        self.pairs.switch(self._base(candidate))
        if candidate.boost.compiles and not self.budget.throw_away:
            units, seconds = yield from self.machinery.compile_aside(candidate)
            self.budget.lose(max(0.0, seconds - units * self.state.now_s))
        began, steps = time.perf_counter(), self.machinery.steps()
        verdict = yield from self.machinery.check(candidate)
        compile_s = time.perf_counter() - began
        trained_s = (self.machinery.steps() - steps) * self._step_s()
        self.budget.lose(max(0.0, compile_s - trained_s))
        if not verdict.passed:
            return self._refused(candidate, verdict, began)
        trial = [*self._base(candidate), candidate.order]
        yield from self._get_ready(candidate, trial)
        if refusal := self._unready(candidate):
            self.pairs.switch(self.state.on)
            return self._not_now(candidate, refusal)
        pairs = self.costs.most_pairs(candidate, self._turns.untried)
        kept_ids = [other.id for other in self.state.kept]
        earlier_ratios = self._turns.earlier_ratios(candidate.id, kept_ids)
        answer = yield from self.compare(candidate, self.state.on, trial, pairs, earlier_ratios)
        if self.pairs.agreed(self._stays_open(candidate, answer)):
            self._turns.open[candidate.id] = candidate, answer
            self._turns.ratios[candidate.id] = kept_ids, self._ratios
            self.pairs.switch(self.state.on)
            return "open"
        return self._decide(candidate, answer, verdict, began, compile_s)

    def _not_now(self, candidate: Candidate, refusal: Refusal) -> str:
        if candidate.id in self._turns.open:
            _, answer = self._turns.open[candidate.id]
            return self.tell(candidate, "same", decisions.why_not(answer), answer)
        kind: wire.LiveVerdict = "declined" if refusal.why is None else "untried"
        return self.tell(candidate, kind, refusal.reason, why=refusal.why)

    def _get_ready(self, candidate: Candidate, trial: Orders) -> Story:
        """Train for a while under a boost that gains nothing at first (a cache that fills).

        In a run that is not thrown away this costs nothing, so it may take its time.
        """
        self.pairs.begin()
        self.pairs.switch(trial)
        while self.pairs.agreed(self._may_get_ready(candidate)):
            yield

    def _unready(self, candidate: Candidate) -> Refusal | None:
        """Why it cannot show its gain in this time; None: it can."""
        steps = self.machinery.steps_to_ready(candidate.id)
        if not self.pairs.agreed(steps > 0):
            return None
        return Refusal(f"it gains nothing before another {max(steps, 1):,} steps", "no_time")

    def _may_get_ready(self, candidate: Candidate) -> bool:
        steps = self.machinery.steps_to_ready(candidate.id)
        wait_s = steps * self._step_s()
        if self.budget.throw_away:
            return 0 < wait_s < min(READY_S, (self.budget.left_s or READY_S) / 2)
        left = None if self.budget.steps is None else self.budget.steps - self.machinery.steps()
        return 0 < wait_s < LIVE_READY_S and (left is None or steps < left / 2)

    def _stays_open(self, candidate: Candidate, answer: paired.Answer) -> bool:
        """Whether more pairs are worth it once all others have had their turn."""
        return (
            answer.verdict == "same"
            and answer.pairs < paired.MOST
            and answer.gain > 1 + paired.MATTERS
            and not candidate.again
            and (self.budget.left_s is not None or answer.gain > 1 + LIKELY)
        )

    def _try_in_evaluation(self, candidate: Candidate) -> Story:
        began = time.perf_counter()
        answer = yield from evaluation.compare(self.pairs, self.budget, candidate.order)
        self.pairs.switch(self.state.on)
        if answer is None:
            reason = "the program did not evaluate again in time"
            self.tell(candidate, "untried", reason, began=began)
            return
        kind: wire.LiveVerdict = "kept" if answer.verdict == "faster" else "same"
        if kind == "kept":
            self.state.kept.append(candidate)
            self.pairs.switch(self.state.on)
        self.tell(candidate, kind, f"{answer.gain:.2f}x in evaluation", answer, began)

    def _base(self, candidate: Candidate) -> list[wire.BoostOrder]:
        """What is kept, without this boost under other parameters."""
        return [other.order for other in self.state.kept if other.id != candidate.id]

    def _worth(self, candidate: Candidate) -> Generator[None, Tick, Refusal | None]:
        for other in self.state.kept:
            if candidate.id in other.boost.conflicts or other.id in candidate.boost.conflicts:
                return Refusal(f"{other.id} is on, and both cannot be")
            if other.id in candidate.boost.covered_by:
                return Refusal(f"{other.id} is on and leaves nothing for it")
        cost_s, compile_s = self.costs.least_s(candidate), self.costs.compile_s(candidate)
        while not self.pairs.agreed(self.budget.ready(cost_s, compile_s)):
            yield from self._train_on(1)
        now = self.machinery.steps(), self._step_s()
        refusal = self.budget.refuses(cost_s, self.costs.gain(candidate), compile_s, *now)
        if not self.pairs.agreed(refusal is not None):
            return None
        return refusal or Refusal("the first rank has no time for it", "no_time")

    def compare(
        self,
        candidate: Candidate,
        base: Orders,
        trial: Orders,
        pairs: int,
        earlier_ratios: Sequence[float] = (),
    ) -> Generator[None, Tick, paired.Answer]:
        """Pairs of blocks, without and with this boost, until the answer is clear.

        earlier_ratios: log-ratios of earlier pairs of the same two. pairs: further ones at most.
        """
        ratios = self._ratios = list(earlier_ratios)
        pairs = min(paired.MOST, pairs + len(ratios))
        loads = candidate.boost.switch is Switch.ITERATOR
        while True:
            ratio = yield from self.pairs.pair(base, trial, self.costs.floor_s(candidate), loads)
            if not self.pairs.agreed(math.isfinite(ratio)):
                broken: paired.PairVerdict = "broken" if self.pairs.broken_by_trial else "nonfinite"
                return replace(paired.answer(ratios, self.state.pair_noise), verdict=broken)
            ratios.append(ratio)
            self.state.pair_noise = self.pairs.noise() or self.state.pair_noise
            answer = paired.answer(ratios, self.state.pair_noise, pairs)
            if answer.verdict != "unclear":
                return answer
            clearly = min(FAR_SLOWER, -2 * self.state.pair_noise.deviation)
            if len(ratios) > 1 and max(ratios) < clearly:
                return replace(answer, verdict="slower")
            if self.pairs.agreed(self.budget.over):
                return replace(answer, verdict="unclear")

    def _train_on(self, units: int) -> Story:
        self.pairs.switch(self.state.on)
        for _ in range(units):
            yield

    # Deciding -----------------------------------------------------------------------------------

    def _refused(self, candidate: Candidate, verdict: guard.GuardVerdict, began: float) -> str:
        if self.pairs.agreed(verdict.near and not candidate.again):
            return "near"
        kind: wire.LiveVerdict = "different" if verdict.error is not None else "declined"
        if verdict.failed:
            kind = "failed"
        return self.tell(candidate, kind, verdict.reason, began=began, guarded=verdict)

    def _decide(
        self,
        candidate: Candidate,
        answer: paired.Answer,
        verdict: guard.GuardVerdict,
        began: float,
        compile_s: float,
    ) -> str:
        # After the guard's call only a boost of the model's calls can tell whether it engaged.
        idle = self.machinery.idle() if candidate.boost.moment is Moment.MODEL else None
        kind: wire.LiveVerdict
        if answer.verdict == "broken":
            kind, reason = "different", "the loss is NaN or Inf under it, or a call failed"
        elif answer.verdict == "nonfinite":
            kind, reason = "declined", "the loss is NaN or Inf without it as well"
        elif idle is not None and answer.verdict != "faster":
            kind, reason = "declined", f"did not engage: {idle}"
        elif answer.verdict == "faster" and not self.pairs.agreed(self._pays(answer, compile_s)):
            kind = "untried"
            reason = f"{answer.gain:.2f}x, but the run is too short to win its start-up back"
        elif answer.verdict == "faster":
            kind, reason = "kept", verdict.reason
        else:
            kind = "slower" if answer.verdict == "slower" else "same"
            reason = decisions.why_not(answer)
        if kind == "same" and answer.gain > 1 and candidate.boost.risk is Risk.EXACT:
            self._small.append(candidate)
        if kind == "kept":
            self.state.kept = [other for other in self.state.kept if other.id != candidate.id]
            self.state.kept.append(candidate)
            self.state.gains[candidate.id] = self.state.gains.get(candidate.id, 1.0) * answer.gain
            self.state.now_s /= answer.gain
        self.pairs.switch(self.state.on)
        start_s = compile_s if candidate.boost.compiles else 0.0
        self.tell(candidate, kind, reason, answer, began, verdict, start_s)
        return kind

    def _step_s(self) -> float:
        return self.state.now_s * self.machinery.units_per_step()

    def _pays(self, answer: paired.Answer, compile_s: float) -> bool:
        """Whether a boost that is compiled at every start wins that time back over a whole run."""
        if self.budget.steps is None or compile_s < 2.0:
            return True
        return self.budget.steps * self._step_s() * (1 - 1 / answer.gain) > compile_s

    def tell(
        self,
        candidate: Candidate,
        kind: wire.LiveVerdict,
        reason: str,
        answer: paired.Answer | None = None,
        began: float | None = None,
        guarded: guard.GuardVerdict | None = None,
        compile_s: float = 0.0,
        why: wire.WhyUntried | None = None,
    ) -> str:
        self._turns.trying = None
        self._turns.open.pop(candidate.id, None)
        record = decisions.decided(candidate, kind, reason, answer, guarded, why)
        self.machinery.tell(
            replace(
                record,
                step=self.machinery.steps(),
                cost_s=time.perf_counter() - began if began is not None else 0.0,
                compile_s=compile_s,
                step_ms=1000 * self.state.now_s if kind == "kept" else None,
            )
        )
        return kind
