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
from flatout_agent.boosts import Moment, Switch, load
from flatout_agent.live import blocks, candidates, decisions, evaluation, guard, paired
from flatout_agent.live.blocks import Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.costs import Costs
from flatout_agent.live.machinery import Machinery, State, Story
from flatout_agent.live.pairs import Pairs

Orders = list[wire.BoostOrder]

WARM_UNITS = 5
WARM_MOST_S = 20.0
LEARN_UNITS = 3
NOISE_PAIRS, FEW_NOISE_PAIRS = 4, 3
LONG_UNIT_S = 0.4
"""Of units this long fewer pairs must do."""
NEAR_AGAIN_STEPS = 30
"""Where the guard refused a boost near its limit, it gets its second look after so many steps: a
deep network amplifies errors in its first steps, and soon much less."""
READY_S, LIVE_READY_S = 20.0, 300.0
"""A boost may take so long until it can show what it gains, in a throw-away run and in a real one,
where waiting costs nothing."""
FEW_PAIRS = 8
"""For the last look at what is kept: little hangs on it."""
FAR_SLOWER = math.log(0.8)
"""A boost that is slower by so much in two pairs gets no third: it costs the run too much."""


class Session:
    """One live tuning. `run` is the story; the rest are its chapters."""

    def __init__(self, machinery: Machinery, orders: wire.LiveOrders, budget: Budget) -> None:
        self.machinery = machinery
        self.orders = orders
        self.budget = budget
        self.state = State()
        self.pairs = Pairs(machinery, self.state, budget, orders.seed)
        self.costs = Costs(self.state, budget)
        self._verdicts: dict[str, str] = {}
        self._untried: list[Candidate] = []
        self._open: dict[str, tuple[Candidate, paired.Answer]] = {}
        """Tried, without a clear answer in their share of the time: others come first."""
        self._trying: Candidate | None = None

    def run(self, planned: Sequence[wire.BoostOrder]) -> Story:
        """Decide on every boost that may be tried, then look after those that are kept."""
        unit_s = yield from self._warm()
        facts = self.machinery.facts()
        self.pairs.accelerated = facts.device != "cpu"
        found, declined = candidates.candidates(facts, self.orders.allowed)
        found = [item for item in found if item.id not in self.orders.settled]
        for row in declined:
            if row.id not in self.orders.settled:
                self.machinery.tell(row)
        yield from self._own_noise(unit_s)
        self.machinery.report()
        found = yield from self._take_plan(found, planned)
        yield from self._try_all([item for item in found if not item.boost.evaluates])
        yield from self._take_each_out()
        for item in found:
            if item.boost.evaluates:
                yield from self._try_in_evaluation(item)
        yield from self._check_together()
        self.state.settled = True
        self.pairs.switch(self.state.on)

    def left_over(self, reason: str) -> None:
        """The program ends: what was not tried is told, with the reason."""
        left = [self._trying, *self._untried] if self._trying is not None else self._untried
        for item in left:
            if item.variant == 0:
                self._tell(item, "untried", reason)

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

    def _own_noise(self, unit_s: float) -> Story:
        """The program against itself: how noisy a pair is, and how long a unit takes."""
        if self.pairs.switch(()):  # a plan is on, and units take another time without it
            yield
            learnt = []
            for _ in range(LEARN_UNITS):
                tick = yield
                learnt.append(tick.seconds)
            unit_s = statistics.median(learnt)
        times: list[float] = []
        for _ in range(2 * (NOISE_PAIRS if unit_s < LONG_UNIT_S else FEW_NOISE_PAIRS)):
            block = yield from self.pairs.block((), unit_s, blocks.LEAST_S, learn=True)
            times.append(block.seconds)
        pairs = zip(times[::2], times[1::2], strict=True)
        self.state.own = paired.noise([math.log(a / b) for a, b in pairs])
        self.state.written_s = self.state.now_s = statistics.median(times)

    def _take_plan(
        self, found: list[Candidate], planned: Sequence[wire.BoostOrder]
    ) -> Generator[None, Tick, list[Candidate]]:
        """The plan's boosts are taken as they are, and looked at once more with one pair."""
        mine = [Candidate(o.id, o.params, load(o.id).BOOST, 1.0) for o in planned]
        if not mine:
            return found
        ratio = yield from self.pairs.pair([], [item.order for item in mine])
        if ratio > -2 * self.state.own.deviation:
            self.state.kept = mine
            self.state.gains["plan"] = math.exp(ratio)
            self.state.now_s = self.state.written_s / math.exp(ratio)
            yield from self._check_together()
            for item in mine:
                self._tell(item, "kept", "in the plan, and one pair does not speak against it")
        kept = {item.id for item in self.state.kept}
        return [item for item in found if item.id not in kept]

    # Trying -------------------------------------------------------------------------------------

    def _try_all(self, found: list[Candidate]) -> Story:
        """Every boost once, then those worth a second look, then other parameters."""
        self._untried = list(found)
        first = [item for item in found if item.variant == 0]
        variants = [item for item in found if item.variant > 0]
        dropped: list[tuple[Candidate, int]] = []
        near: list[Candidate] = []
        for item in first:
            verdict = yield from self._try(item)
            if verdict == "near":
                near.append(item)
            elif verdict in ("slower", "same"):
                dropped.append((item, len(self.state.kept)))
        for item in near:
            yield from self._train_on(NEAR_AGAIN_STEPS)
            yield from self._try(replace(item, again=True))
        for item, _ in list(self._open.values()):
            yield from self._try(replace(item, again=True))
        for item in candidates.retries(dropped, [kept.id for kept in self.state.kept]):
            yield from self._try(item)
        for item in variants:
            yield from self._try(item)

    def _try(self, item: Candidate) -> Generator[None, Tick, str]:
        """One boost on top of what is kept; returns its verdict, `near` for a second look."""
        if item in self._untried:
            self._untried.remove(item)
        if item.variant and self._hopeless(item):
            return "untried"
        self._trying = item
        reason = yield from self._worth(item)
        if reason is not None:
            return self._not_now(item, reason)
        began, steps = time.perf_counter(), self.machinery.steps()
        self.pairs.switch(self._base(item))
        verdict = yield from self.machinery.check(item)
        compile_s = time.perf_counter() - began
        taken_s = (self.machinery.steps() - steps) * self._step_s()
        self.budget.lose(max(0.0, compile_s - taken_s))
        if not verdict.passed:
            return self._refused(item, verdict, began)
        trial = [*self._base(item), item.order]
        yield from self._get_ready(item, trial)
        most = self.costs.most_pairs(item, self._untried)
        answer = yield from self._compare(item, self.state.on, trial, most)
        if self.pairs.agreed(self._stays_open(item, answer)):
            self._open[item.id] = item, answer
            self.pairs.switch(self.state.on)
            return "open"
        return self._decide(item, answer, verdict, began, compile_s)

    def _not_now(self, item: Candidate, reason: str) -> str:
        if item.id in self._open:
            _, answer = self._open[item.id]
            return self._tell(item, "same", decisions.why_not(answer), answer)
        kind = "untried" if "time" in reason or "cost" in reason else "declined"
        return self._tell(item, kind, reason)

    def _get_ready(self, item: Candidate, trial: Orders) -> Story:
        """A boost that gains nothing at first (samples are kept as they come) trains for a while.

        In a run that is not thrown away it costs nothing, so that it may take its time.
        """
        self.pairs.switch(trial)
        while self.pairs.agreed(self._may_get_ready(item)):
            yield

    def _may_get_ready(self, item: Candidate) -> bool:
        steps = self.machinery.steps_to_ready(item.id)
        wait_s = steps * self._step_s()
        if self.budget.throw_away:
            return 0 < wait_s < min(READY_S, (self.budget.left_s or READY_S) / 2)
        left = None if self.orders.steps is None else self.orders.steps - self.machinery.steps()
        return 0 < wait_s < LIVE_READY_S and (left is None or steps < left / 2)

    def _stays_open(self, item: Candidate, answer: paired.Answer) -> bool:
        """Whether more pairs are worth it once all others had their turn."""
        return (
            answer.verdict == "same"
            and answer.pairs < paired.MOST
            and answer.gain > 1 + paired.MATTERS
            and not item.again
            and self.budget.left_s is not None
        )

    def _try_in_evaluation(self, item: Candidate) -> Story:
        began = time.perf_counter()
        answer = yield from evaluation.compare(self.pairs, self.budget, item.order)
        self.pairs.switch(self.state.on)
        if answer is None:
            reason = "the program did not evaluate again in time"
            self._tell(item, "untried", reason, began=began)
            return
        kind = "kept" if answer.verdict == "faster" else "same"
        if kind == "kept":
            self.state.kept.append(item)
            self.pairs.switch(self.state.on)
        self._tell(item, kind, f"{answer.gain:.2f}x in evaluation", answer, began)

    def _hopeless(self, item: Candidate) -> bool:
        """Other parameters are tried where the first ones ran, and compiled anew where they won."""
        verdict = self._verdicts.get(item.id)
        return verdict not in (("kept",) if item.boost.compiles else ("kept", "slower", "same"))

    def _base(self, item: Candidate) -> list[wire.BoostOrder]:
        """What is kept beside this boost's own other parameters."""
        return [kept.order for kept in self.state.kept if kept.id != item.id]

    def _worth(self, item: Candidate) -> Generator[None, Tick, str | None]:
        for kept in self.state.kept:
            if item.id in kept.boost.conflicts or kept.id in item.boost.conflicts:
                return f"{kept.id} is on, and both cannot be"
            if kept.id in item.boost.covered_by:
                return f"{kept.id} is on and leaves nothing for it"
        cost_s = self.costs.least_s(item)
        while not self.pairs.agreed(self.budget.ready(cost_s, item.boost.compiles)):
            yield from self._train_on(1)
        now = self.machinery.steps(), self._step_s()
        reason = self.budget.refuses(cost_s, item.promise, item.boost.compiles, *now)
        refused = self.pairs.agreed(reason is not None)
        return (reason or "the first rank has no time for it") if refused else None

    def _compare(
        self, item: Candidate, base: Orders, trial: Orders, most: int
    ) -> Generator[None, Tick, paired.Answer]:
        """Pairs of blocks, without and with this boost, until the answer is clear."""
        ratios: list[float] = []
        loads = item.boost.switch is Switch.ITERATOR
        while True:
            ratio = yield from self.pairs.pair(base, trial, self.costs.floor_s(item), loads)
            if not self.pairs.agreed(math.isfinite(ratio) and self.machinery.sound()):
                return replace(paired.answer(ratios, self.state.own), verdict="broken")
            ratios.append(ratio)
            answer = paired.answer(ratios, self.state.own, most)
            if answer.verdict != "unclear":
                return answer
            if len(ratios) > 1 and max(ratios) < FAR_SLOWER and answer.high < 1:
                return replace(answer, verdict="slower")
            if self.pairs.agreed(self.budget.over):
                return replace(answer, verdict="unclear")

    def _train_on(self, units: int) -> Story:
        self.pairs.switch(self.state.on)
        for _ in range(units):
            yield

    # Deciding -----------------------------------------------------------------------------------

    def _refused(self, item: Candidate, verdict: guard.Verdict, began: float) -> str:
        if self.pairs.agreed(verdict.near and not item.again):
            return "near"
        kind = "different" if verdict.error is not None else "declined"
        if verdict.reason.startswith("failed:"):
            kind = "failed"
        reason = verdict.reason.removeprefix("failed: ")
        return self._tell(item, kind, reason, began=began, guarded=verdict)

    def _decide(
        self,
        item: Candidate,
        answer: paired.Answer,
        verdict: guard.Verdict,
        began: float,
        compile_s: float,
    ) -> str:
        # Only what acts on the model's calls has had its say after the guard's one call.
        idle = self.machinery.idle() if item.boost.moment is Moment.MODEL else None
        if answer.verdict == "broken":
            kind, reason = "different", "NaN, Inf or an error under it"
        elif idle is not None and answer.verdict != "faster":
            kind, reason = "declined", f"did not engage: {idle}"
        elif answer.verdict == "faster" and not self.pairs.agreed(self._pays(answer, compile_s)):
            kind = "untried"
            reason = f"{answer.gain:.2f}x, but the run is too short to win its start-up back"
        elif answer.verdict == "faster":
            kind, reason = "kept", verdict.reason
        else:
            kind, reason = answer.verdict, decisions.why_not(answer)
        kind = "same" if kind == "unclear" else kind
        if kind == "kept":
            self.state.kept = [kept for kept in self.state.kept if kept.id != item.id]
            self.state.kept.append(item)
            self.state.gains[item.id] = self.state.gains.get(item.id, 1.0) * answer.gain
            self.state.now_s /= answer.gain
        self.pairs.switch(self.state.on)
        self._tell(item, kind, reason, answer, began, verdict,
                   compile_s if item.boost.compiles else 0.0)  # fmt: skip
        return kind

    def _step_s(self) -> float:
        return self.state.now_s * self.machinery.units_per_step()

    def _pays(self, answer: paired.Answer, compile_s: float) -> bool:
        """Whether a boost that is compiled at every start wins that back in a whole run."""
        if self.orders.steps is None or compile_s < 2.0:
            return True
        return self.orders.steps * self._step_s() * (1 - 1 / answer.gain) > compile_s

    def _tell(
        self,
        item: Candidate,
        kind: str,
        reason: str,
        answer: paired.Answer | None = None,
        began: float | None = None,
        guarded: guard.Verdict | None = None,
        compile_s: float = 0.0,
    ) -> str:
        self._verdicts[item.id] = kind
        self._trying = None
        record = decisions.decided(item, kind, reason, answer, guarded)
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

    def _take_each_out(self) -> Story:
        """Where several are kept, each must still earn its place beside the others."""
        if len(self.state.kept) < 2 or self.budget.over:
            return
        for item in list(self.state.kept[:-1]):  # the last was measured beside all others
            if len(self.state.kept) < 2:
                return
            cost_s = self.costs.least_s(item)
            if not self.pairs.agreed(self.budget.ready(cost_s, False) and not self.budget.over):
                return
            on = self.state.on
            others = [order for order in on if order.id != item.id]
            answer = yield from self._compare(item, others, on, FEW_PAIRS)
            if answer.verdict == "slower" or (answer.verdict == "same" and answer.gain < 0.99):
                self.state.kept.remove(item)
                self.state.gains.pop(item.id, None)
                self.state.now_s *= answer.gain
                self.pairs.switch(self.state.on)
                reason = f"beside the others it is {1 / answer.gain:.2f}x slower"
                self._tell(item, "dropped", reason, answer)

    def _check_together(self) -> Story:
        """All that is kept against the program as written: errors may add up."""
        while self.state.kept:
            self.pairs.switch(self.state.on)
            verdict = yield from self.machinery.check_together(self.state.kept)
            self.state.together = verdict
            if verdict.passed or not self.pairs.agreed(verdict.error is not None):
                return
            risky = [kept for kept in self.state.kept if kept.boost.risk.value != "exact"]
            item = (risky or self.state.kept)[-1]
            self.state.kept.remove(item)
            self.state.now_s *= self.state.gains.pop(item.id, 1.0)
            self._tell(item, "dropped", f"together with the others: {verdict.reason}")
