"""A live tuning from its first step to its last decision: the whole recipe first, then refined.

A generator: each `yield` hands the program its next unit of work (a step, or a micro-step where
steps are made of many) and comes back with the `Tick` that says how long it took. So the tuning
reads as a story although the program's own loop is in charge.

All boosts that are likely to help are switched on together. The Guard takes out those that it
refuses, one pair of blocks compares the rest with the program as written, and the faster set stays.
Then it is refined: boosts that could hurt are taken out once; alternatives and boosts that take
long to compile are added.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import replace

from flatout_agent import wire
from flatout_agent.boost import Moment, Risk
from flatout_agent.boosts import load
from flatout_agent.live import candidates, decide, measure
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate, promise_of, record_of
from flatout_agent.live.compare import SURE_PAIRS, Comparer
from flatout_agent.live.decisions import LIKELY, OWN, Decisions
from flatout_agent.live.measure import Measure
from flatout_agent.live.state import Machinery, State, Story, Tick
from flatout_agent.live.trials import Trials
from flatout_agent.live.turns import Turns

WARM_UNITS = 5
WARM_MOST_S, WARM_AGAIN_S = 10.0, 1.0
"""The most seconds until units take about the same time: in the first process of a tuning, and in
one that is begun again, where it is known how long a unit takes."""
DATA_BOUND = 0.3
"""If a step waits for data for at least this share, the loader comes first."""
SOON_S = 5.0
"""An epoch this short fills a cache at once."""
CHANGED = 1.2
"""After a speed-up this large the program is analysed again."""
SLOW_START = 1.5
"""If a unit as written took so many times as long at the start as it does in blocks, the program is
analysed again, too: shares of the first units promised too little."""
SURE = math.log(1.1)
"""A smaller gain, or one that rests on few pairs, is compared with the program as written once
more."""
IN_THE_PLAN = "in the plan, and one pair does not speak against it"


class Tuning:
    """One live tuning. `run` is the story; the rest are its chapters."""

    def __init__(self, machinery: Machinery, orders: wire.LiveOrders, budget: Budget) -> None:
        self.machinery, self.orders, self.budget = machinery, orders, budget
        self.state = State()
        self.measure = Measure(machinery, self.state, budget.lose, orders.seed)
        self.comparer = Comparer(machinery, self.state, budget, self.measure, orders.compared)
        self.decisions = Decisions(self.comparer, orders.measured)
        self.turns = Turns(self.decisions)
        self.trials = Trials(self.decisions, self.turns)
        self._looked_at = 1.0
        """The speed-up when the program was last analysed ..."""
        self._looked_at_s = math.inf
        """... and the seconds of a unit as written."""
        self._looked = False
        """It is known which boosts apply."""

    def run(self, planned: Sequence[wire.BoostOrder]) -> Story:
        """Decide on every boost that may be tried."""
        story = self._story(planned)
        next(story)
        while True:
            tick = yield
            self.comparer.see(tick)
            try:
                story.send(tick)
            except StopIteration:
                return

    def _story(self, planned: Sequence[wire.BoostOrder]) -> Story:
        device = self.machinery.facts().device
        plan = [
            Candidate(o.id, o.params, load(o.id).BOOST, 1.0, record_of(o.id, device))
            for o in planned
        ]
        if plan:
            self.state.keep(plan, self.orders.gain, self.orders.pairs)
            self.budget.found = True
        yield from self._look()
        if plan and self.orders.written_s is None:
            yield from self._check_plan()
        kept_ids, untried = set(self.state.kept_ids), self.decisions.untried
        self.decisions.untried = [c for c in untried if c.id not in kept_ids or c.variant]
        loaders = [c for c in self.decisions.untried if c.boost.moment is Moment.LOADER]
        if loaders and (self.machinery.facts().wait_share or 0.0) > DATA_BOUND:
            # A cache shows its gain in the next epoch only: if that is far, it has its turn later.
            soon = self._epoch_s() <= SOON_S
            first = max(loaders, key=lambda c: (soon or not c.boost.fills, c.promise))
            yield from self.trials.add([first])
        if not self.orders.alone:
            yield from self._try_recipe()
        self._drop_idle([kept for kept in self.state.kept if kept.boost.outside_calls])
        yield from self._look_again()
        while (turn := self.turns.best()) is not None:
            if not self.budget.ready(turn.cost_s, turn.compile_s):
                yield from self.trials.train_on(1)
            elif turn.kind == "wait":
                yield from self.trials.train_on(max(1, turn.due - self.machinery.steps()))
            elif turn.kind == "take out":
                yield from self.trials.take_out(turn.group)
            else:
                yield from self.trials.add(turn.group)
            yield from self._look_again()
        yield from self._try_small_ones()
        yield from self._check_together()
        yield from self._verify()
        self._drop_idle(self.state.kept)
        if not self.state.pairs:
            yield from self.measure_kept()
        self.state.settled = True
        self.measure.switch(self.state.on)

    def measure_kept(self) -> Story:
        """Measure the remaining boosts after one was taken out, in one block and without
        a verdict.
        """
        if self.state.kept:
            block = yield from self.measure.block(self.state.on)
            self.state.gain, self.state.pairs = self.state.written_s / block.seconds, 1

    def give_up(self, reason: str) -> None:
        """Report what was not tried or decided, in a program that cannot be tuned."""
        self.decisions.left(reason, None)
        if self._looked:
            return
        for boost in sorted({*self.orders.allowed} - {*self.orders.settled, *self.state.kept_ids}):
            self.machinery.tell(wire.Decided(boost, "declined", reason))
        self.machinery.report()

    # The program as written ---------------------------------------------------------------------

    def _look(self) -> Story:
        """How long a unit takes, where its time goes, and which boosts apply."""
        machinery, budget = self.machinery, self.budget
        budget.begin()
        self.measure.accelerated = machinery.facts().device != "cpu"
        if self.orders.written_s is None and self.measure.switch(()):
            yield
        unit_s = yield from self._warm()
        # An earlier process of this tuning may have measured it.
        self.state.written_s = self.orders.written_s or unit_s
        if self.measure.accelerated and self.orders.written_s is None:
            block = yield from self.measure.block(())
            self.state.written_s = block.seconds
        if budget.steps is None:
            budget.steps = machinery.planned_steps()
        budget.reserve(self.state.written_s * machinery.units_per_step())
        self._looked_at_s = self.state.written_s
        yield from machinery.look_inside()
        facts = machinery.facts()
        budget.layers = sum(model.conv2d + model.matmul for model in facts.models)
        budget.operations = facts.operations
        eligible, declined = candidates.candidates(facts, self.orders.allowed)
        settled = set(self.orders.settled)
        self.decisions.untried = [item for item in eligible if item.id not in settled]
        for row in declined:
            if row.id not in settled:
                machinery.tell(row)
        self._looked = True
        machinery.report()

    def _warm(self) -> Generator[None, Tick, float]:
        """Wait until units take about the same time; returns how long one takes.

        Of long units two are enough. The first ones are often the slowest: memory is new, kernels
        are chosen, and some programs evaluate after their first step.
        """
        ticks: list[Tick] = []
        began = self.machinery.now()
        begun_again = self.orders.written_s is not None or self.orders.compared
        most_s = WARM_AGAIN_S if begun_again else WARM_MOST_S
        while True:
            ticks.append((yield))
            last = [tick.seconds for tick in ticks[-WARM_UNITS:]]
            long = min(last) >= measure.NO_SKIP_S and not self.measure.accelerated
            usual = min(last[-2:]) if long else statistics.median(last)
            unit_s = self.machinery.agree(usual, "max")
            steady = len(ticks) > WARM_UNITS and max(last) <= 1.5 * statistics.median(last)
            enough = self.machinery.agree(float(steady or (long and len(ticks) > 1)), "min")
            if enough or self.machinery.now() - began > most_s:
                break
        self.measure.sizes.never_clean = len(ticks) > WARM_UNITS and not any(
            tick.clean for tick in ticks
        )
        return unit_s

    def _look_again(self) -> Story:
        """Analyse the program again after a large change, when time goes elsewhere and other boosts
        apply, or if its first units were no measure of the others.
        """
        slow_start = self._looked_at_s > SLOW_START * self.state.written_s
        changed = self.state.gain >= CHANGED * self._looked_at
        if self.budget.over or not (changed or slow_start):
            return
        self._looked_at, self._looked_at_s = self.state.gain, self.state.written_s
        self.measure.switch(self.state.on)
        yield from self.machinery.look_inside()
        eligible, declined = candidates.candidates(self.machinery.facts(), self.orders.allowed)
        new = [candidate for candidate in eligible if candidate.id not in self.orders.settled]
        self.decisions.seen_again(new, declined)

    def _check_plan(self) -> Story:
        """Adopt a plan's boosts as they are, unless a pair speaks against them."""
        plan = list(self.state.kept)
        ratio = yield from self.measure.pair([], self.state.on)
        if ratio > -2 * self.state.noise.deviation:
            self.state.gain, self.state.pairs = math.exp(ratio), 1
            yield from self._check_together()
            for candidate in self.state.kept:
                self.decisions.tell(candidate, "kept", IN_THE_PLAN)
        else:
            for candidate in plan:
                self.state.drop(candidate, None)

    # The recipe ---------------------------------------------------------------------------------

    def _try_recipe(self) -> Story:
        """Try the boosts that go on together first: the likeliest of alternatives, and none that
        compiles.
        """
        group: list[Candidate] = []
        for candidate in sorted(self.decisions.untried, key=lambda c: (-c.promise, c.id)):
            if self.turns.goes_together(candidate) and self.turns.fits(candidate, group):
                group.append(candidate)
        if not group:
            return
        refusal = self.turns.refusal(self.turns.cost_s(group), promise_of(group), 0.0)
        if refusal is not None and refusal.why == "no_time":
            group = [max(group, key=lambda candidate: candidate.likely_gain)]
            if self.turns.refusal(self.turns.cost_s(group), group[0].promise, 0.0) is not None:
                return  # told by `Turns.best`
        yield from self.trials.add(group)

    # Refining -----------------------------------------------------------------------------------

    def _try_small_ones(self) -> Story:
        """Switch on exact boosts with small gains together: their sum may be beyond doubt."""
        group: list[Candidate] = []
        for candidate in self.decisions.small:
            if self.turns.fits(candidate, group):
                group.append(candidate)
        if len(group) < 2 or self.turns.refusal(2 * self.measure.pair_s(), 1.01, 0.0) is not None:
            return
        began = self.machinery.now()
        answer = yield from self.comparer.compare(
            group, self.state.on, [*self.state.on, *(candidate.order for candidate in group)]
        )
        if answer.verdict == "faster":
            self.decisions.keep(group, answer, None, began, 0.0)
        self.measure.switch(self.state.on)

    def _verify(self) -> Story:
        """Compare doubtful gains with the program as written once more."""
        group, left_s = list(self.state.kept), self.budget.left_s
        enough = self.state.pairs >= SURE_PAIRS
        if not group or self.budget.over:
            return
        if enough and left_s is not None and left_s < self.measure.pair_s():
            return
        if enough and math.log(self.state.gain) >= max(SURE, 3 * self.state.noise.deviation):
            return
        self.comparer.forget(group)
        began = self.machinery.now()
        answer = yield from self.comparer.compare(group, [], self.state.on, last=True)
        if answer.verdict == "broken":
            self.decisions.broken(group, answer, began)
            return
        if self.budget.reserved_s:  # fresh processes have the last word on what is possible
            likely = answer.gain > 1.0 or answer.high >= self.state.gain
        else:
            likely = answer.gain > 1 + (decide.MATTERS if enough else LIKELY)
        if answer.verdict == "faster" or (answer.verdict == "unclear" and likely):
            # Few pairs may be disturbed: the smaller gain is told, and none that was not seen again
            # unless fresh processes show one.
            few = answer.pairs < decide.FEWEST
            gain = min(answer.gain, self.state.gain) if few else answer.gain
            self.state.measured(replace(answer, gain=max(gain, 1.0)))
            return
        why = OWN if answer.verdict == "nonfinite" else decide.why_not(answer)
        for candidate in group:
            self.state.drop(candidate, None)
            reason = f"all together, once more: {why}"
            self.decisions.tell(candidate, "dropped", reason, answer)

    def _check_together(self) -> Story:
        """Check all kept boosts together against the program as written, since errors may
        add up.
        """
        state = self.state
        while state.kept:
            left_s = self.budget.left_s
            late = left_s is not None and left_s <= self.trials.guard_s
            # A verdict that refused those that have since been dropped says nothing of the rest.
            if state.verdict is not None and state.verdict.passed and late:
                return
            self.measure.switch(state.on)
            verdict = yield from self.machinery.check_together(state.kept)
            if verdict.near and not late:  # only what is refused twice is dropped
                verdict = yield from self.machinery.check_together(state.kept)
            state.verdict = verdict
            if verdict.passed or verdict.error is None:
                return
            draws = [c for c in state.kept if c.boost.redraws] if verdict.by_draws else []
            risky = [member for member in state.kept if member.boost.risk is not Risk.EXACT]
            candidate = (draws or risky or state.kept)[-1]
            state.drop(candidate, None)
            reason = f"together with the others: {verdict.summary}"
            self.decisions.tell(candidate, "dropped", reason)

    def _epoch_s(self) -> float:
        """Seconds until the longest loader begins again; infinity if unknown, or if it never
        does.
        """
        batches = [loader.batches for loader in self.machinery.facts().loaders]
        longest = max((count for count in batches if count is not None), default=None)
        if longest is None:
            return math.inf
        steps = longest / self.machinery.units_per_step()
        once = self.budget.steps is not None and steps >= self.budget.steps
        return math.inf if once else longest * self.state.written_s

    def _drop_idle(self, kept: Sequence[Candidate]) -> None:
        """Drop those that never took hold beside the others: they have no place in a plan.

        One that an earlier process has compared alone took hold there; a cache may not be full yet.
        """
        seen = set(self.orders.measured)
        idle = self.comparer.never_held([c for c in kept if c.id not in seen])
        if self.machinery.facts().autocast is None:
            lost = [c for c in kept if c.boost.needs and c.boost.needs not in self.state.kept_ids]
            idle |= {c.id: f"it does nothing without {c.boost.needs}" for c in lost}
        for candidate in [c for c in kept if c.id in idle]:
            self.state.drop(candidate, 1.0)
        self.decisions.without(kept, idle)
