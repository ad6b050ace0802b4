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
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from flatout_agent import wire
from flatout_agent.boost import Moment, Risk
from flatout_agent.boosts import load
from flatout_agent.live import candidates, decide, expected, measure
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate, Refusal, highest_risk
from flatout_agent.live.compare import SURE_PAIRS, SURPRISING, Comparer, Orders
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.measure import Measure
from flatout_agent.live.state import Machinery, State, Story, Tick
from flatout_agent.watch.window import FILLING_S

WARM_UNITS = 5
WARM_MOST_S = 10.0
GUARD_UNITS = 6
"""Units of work that the Guard takes: it repeats a call both ways."""
DATA_BOUND = 0.3
"""If a step waits for data for at least this share, the loader comes first."""
AGAIN = 0.05
"""An unclear boost, or other parameters, are worth this part of a first try."""
LIVE_READY_S = 300.0
"""How long a boost may take in a real run until it can show its gain: waiting costs nothing there.
A throw-away run allows `FILLING_S`, and so does the confirmation."""
LIKELY = 0.05
"""A gain that looks this large gets a second turn even without a time limit, and is believed if
there is no more time to look."""
PROMISED = 1.25
"""A boost may well bring this many times what it promises."""
NEAR_AGAIN_STEPS = 30
"""Steps until a boost that the Guard refused near its limit gets a second look: a deep network
amplifies errors in its first steps, and soon much less."""
NEAR_AGAIN_S, NEAR_AGAIN_LEAST_STEPS = 8.0, 10
"""A throw-away run first waits no longer than this, but at least for so many steps."""
WORTH_WAITING_S = 15.0
"""The rest of a recipe waits at most this long for them."""
MOST_NEAR_LOOKS = 2
"""Further looks at such a boost."""
SMALL = 0.01
"""A boost expected to bring or cost less than this is not worth pairs of its own."""
HARMLESS = 0.02
"""A boost expected to cost less than this takes some pairs to be shown harmful."""
CHANGED = 1.2
"""After a speed-up this large the program is analysed again."""
RISKY = 0.05
"""A boost expected to cost more than this, and more than it brings, is left out of the recipe."""
PAIRS_ON_AVERAGE = 6
"""Pairs needed until a difference of some percent is clear."""
FEW_PAIRS = 8
"""If there is time for fewer pairs, a recipe that seems faster gets them: none is left for parts
of it."""
FEW_FIRST = 2
"""A recipe that promises less than a boost that compiles gets so many pairs, and its parts their
turn after that one."""
EXACT_S = 8.0
"""The most seconds for exact boosts before those that round and promise more have their turn."""
LONG_PAIR_S = 2.0
"""Blocks of such pairs are long enough to outlast most disturbances."""
QUICK_GAIN = 1.3
"""A boost that gains more than this takes a pair or two."""
SURE = math.log(1.1)
"""A smaller gain, or one that rests on few pairs, is compared with the program as written once
more."""
STAYS = "neither clearly faster nor slower"
BROKEN = "the loss is NaN or Inf under it, or a call failed"
OWN = "the loss is NaN or Inf without it as well"
IN_THE_PLAN = "in the plan, and one pair does not speak against it"


@dataclass
class NextTry:
    """Something to try next."""

    worth: float
    """Expected seconds saved in each second of the run, for each second of trial."""
    cost_s: float
    compile_s: float
    gain: float
    """Likely speed-up."""
    candidate: Candidate
    begin: Callable[[], Story]


class Tuning:
    """One live tuning. `run` is the story; the rest are its chapters."""

    def __init__(self, machinery: Machinery, orders: wire.LiveOrders, budget: Budget) -> None:
        self.machinery, self.orders, self.budget = machinery, orders, budget
        self.state = State()
        self.measure = Measure(machinery, self.state, budget.lose, orders.seed)
        self.comparer = Comparer(machinery, self.state, budget, self.measure, orders.compared)
        self.untried: list[Candidate] = []
        self.near: list[tuple[Candidate, int]] = []
        """Boosts refused near the Guard's limit, and the step from which they are looked at
        again ..."""
        self._near_looks: Counter[str] = Counter()
        """... and how often they were refused so."""
        self.open: dict[str, tuple[Candidate, decide.Answer]] = {}
        """Boosts without a clear answer in their share of the time."""
        self.trying: list[Candidate] = []
        self._compared: list[Candidate] = []
        """The boosts of these that have passed the Guard and are being compared."""
        self._measured: set[str] = set(orders.measured)
        """Kept boosts that were compared alone."""
        self._guard_s = 0.0
        """What the Guard took for the last boosts that were tried."""
        self._harmless: set[str] = set()
        """Those of the others that seem to do no harm, after a few pairs."""
        self._looked_at = 1.0
        """The speed-up when the program was last analysed."""
        self._looked = False
        """It is known which boosts apply."""
        self._decided: set[str] = set()
        """Boosts that were tried and have their verdict."""
        self._small: list[Candidate] = []
        """Boosts whose gain may be too small to be measured alone."""

    @property
    def compared(self) -> tuple[wire.Compared, ...]:
        """The comparisons and their pairs so far, for the next process."""
        return self.comparer.compared

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
            Candidate(o.id, o.params, load(o.id).BOOST, 1.0, expected.record(o.id, device))
            for o in planned
        ]
        if plan:
            self.state.keep(plan, self.orders.gain, self.orders.pairs)
            self.budget.found = True
        yield from self._look()
        if plan and self.orders.written_s is None:
            yield from self._check_plan()
        kept_ids = set(self.state.kept_ids)
        self.untried = [c for c in self.untried if c.id not in kept_ids or c.variant]
        loaders = [c for c in self.untried if c.boost.moment is Moment.LOADER]
        if loaders and (self.machinery.facts().wait_share or 0.0) > DATA_BOUND:
            # A cache shows its gain in the next epoch only: it has its turn later.
            yield from self._try([max(loaders, key=lambda c: (not c.boost.fills, c.promise))])
        if not self.orders.alone:
            yield from self._try_recipe()
        self._drop_idle([kept for kept in self.state.kept if kept.boost.outside_calls])
        yield from self._look_again()
        while (turn := self._next()) is not None:
            yield from self._when_ready(turn)
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

    def blame(self, error: str) -> None:
        """The program failed outside the calls of its models: report the boosts that were on.

        Several of them are tried alone in the next process of a tuning. A real run may fail for
        many reasons: there only those being tried are suspected.
        """
        on = {order.id for order in self.machinery.on()}
        kept = [candidate for candidate in self.state.kept if candidate.id in on]
        suspects = [candidate for candidate in self.trying if candidate.id in on]
        if not suspects and self.budget.throw_away:
            suspects = kept
        reason = f"the program failed under it: {error}"
        for candidate in suspects:
            if len(suspects) == 1:
                self.tell(candidate, "failed", reason)
            else:
                kind: wire.LiveVerdict = "dropped" if candidate in kept else "untried"
                self.tell(candidate, kind, reason, why="program_failed")
            if candidate in kept:
                self.state.drop(candidate, None)
        self._compared = []

    def left_over(self, reason: str) -> None:
        """Report what was not tried when the program ends, with the reason."""
        self._keep_so_far()
        self._left(reason, "program_ended")

    def out_of_time(self) -> None:
        """Report what was not tried, or not decided, when the time is up."""
        answer, group = self.comparer.so_far, self._compared
        if answer is not None and group and self._believed(group, answer):
            self._keep(group, answer, None, self.machinery.now(), 0.0)
            self.trying = [candidate for candidate in self.trying if candidate not in group]
        self._left("no time left", "no_time")

    def give_up(self, reason: str) -> None:
        """Report what was not tried or decided, in a program that cannot be tuned."""
        self._left(reason, None)
        if self._looked:
            return
        for boost in sorted({*self.orders.allowed} - {*self.orders.settled, *self.state.kept_ids}):
            self.machinery.tell(wire.Decided(boost, "declined", reason))
        self.machinery.report()

    def _left(self, reason: str, why: wire.WhyUntried | None) -> None:
        ended = "the program ended" if why == "program_ended" else reason
        for candidate in self._undecided():
            answer = self.comparer.so_far if candidate in self._compared else None
            pairs = answer.pairs if answer is not None else 0
            told = f"{ended}: {decide.so_far(answer)}" if answer and pairs else reason
            self.tell(candidate, "untried", told, answer, why=why)
        for candidate, answer in list(self.open.values()):
            self.tell(candidate, "untried", f"{ended}: {decide.so_far(answer)}", answer, why=why)

    def _undecided(self) -> list[Candidate]:
        """The boosts being tried or still to be tried, without other parameters of the
        same boost.
        """
        waiting = [*self.trying, *(candidate for candidate, _ in self.near), *self.untried]
        known = {*self._decided, *self.open, *self.state.kept_ids}
        return [c for c in waiting if c.variant == 0 and c.id not in known]

    def _keep_so_far(self) -> None:
        """Keep what leads for now: a throw-away program is too short for a clear answer.

        The next one continues from it, and whole runs decide in the end.
        """
        answer, group = self.comparer.so_far, self._compared
        if not self.budget.throw_away or answer is None or not group:
            return
        if _leads(answer) and answer.pairs > 1 and answer.low > 1 / answer.gain:
            self.state.keep(group, answer.gain, answer.pairs)
            together = tuple(candidate.id for candidate in group) if len(group) > 1 else ()
            reason = f"the program ended: {decide.so_far(answer)}"
            for candidate in group:
                self.tell(candidate, "kept", reason, answer, together=together)
            self.trying = [candidate for candidate in self.trying if candidate not in group]

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
        budget.reserved_s = self._reserved_s()
        yield from machinery.look_inside()
        facts = machinery.facts()
        budget.layers = sum(model.conv2d + model.matmul for model in facts.models)
        budget.operations = facts.operations
        eligible, declined = candidates.candidates(facts, self.orders.allowed)
        settled = set(self.orders.settled)
        self.untried = [candidate for candidate in eligible if candidate.id not in settled]
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
        while True:
            ticks.append((yield))
            last = [tick.seconds for tick in ticks[-WARM_UNITS:]]
            long = min(last) >= measure.NO_SKIP_S and not self.measure.accelerated
            usual = min(last[-2:]) if long else statistics.median(last)
            unit_s = self.machinery.agree(usual, "max")
            steady = len(ticks) > WARM_UNITS and max(last) <= 1.5 * statistics.median(last)
            enough = self.machinery.agree(float(steady or (long and len(ticks) > 1)), "min")
            if enough or self.machinery.now() - began > WARM_MOST_S:
                break
        self.measure.sizes.never_clean = len(ticks) > WARM_UNITS and not any(
            tick.clean for tick in ticks
        )
        return unit_s

    def _reserved_s(self) -> float:
        if self.orders.started_at is None:
            return 0.0
        start_s = self.budget.began - self.orders.started_at
        step_s = self.state.written_s * self.machinery.units_per_step()
        return wire.reserved_s(self.orders.whole_s, start_s, step_s, self.budget.steps)

    def _look_again(self) -> Story:
        """Analyse the program again after a large change, when time goes elsewhere and other boosts
        apply.
        """
        if self.state.gain < CHANGED * self._looked_at or self.budget.over:
            return
        self._looked_at = self.state.gain
        self.measure.switch(self.state.on)
        yield from self.machinery.look_inside()
        eligible, declined = candidates.candidates(self.machinery.facts(), self.orders.allowed)
        promises = {(c.id, c.variant): c.promise for c in eligible}
        refused = {row.id: row for row in declined}
        for candidate in [c for c in self.untried if c.id in refused]:
            self.untried.remove(candidate)
            if not candidate.variant:
                self._decided.add(candidate.id)
                self.machinery.tell(refused[candidate.id])
        self.untried = [
            replace(c, promise=promises.get((c.id, c.variant), c.promise)) for c in self.untried
        ]
        known = {*self._decided, *self.orders.settled, *self.state.kept_ids}
        known |= {c.id for c in self.untried} | {c.id for c, _ in self.near} | set(self.open)
        self.untried += [candidate for candidate in eligible if candidate.id not in known]

    def _check_plan(self) -> Story:
        """Adopt a plan's boosts as they are, unless a pair speaks against them."""
        plan = list(self.state.kept)
        ratio = yield from self.measure.pair([], self.state.on)
        if ratio > -2 * self.state.noise.deviation:
            self.state.gain, self.state.pairs = math.exp(ratio), 1
            yield from self._check_together()
            for candidate in self.state.kept:
                self.tell(candidate, "kept", IN_THE_PLAN)
        else:
            for candidate in plan:
                self.state.drop(candidate, None)

    # The recipe ---------------------------------------------------------------------------------

    def _recipe(self) -> list[Candidate]:
        """The boosts that go on together first: the likeliest of alternatives, and none that
        compiles.
        """
        chosen: list[Candidate] = []
        for candidate in sorted(self.untried, key=lambda c: (-c.promise, c.id)):
            boost = candidate.boost
            if boost.compiles or boost.loads or boost.tried_alone or candidate.variant:
                continue
            if candidate.likely_harm > max(RISKY, candidate.likely_gain):
                continue  # it is tried alone
            if self._fits(candidate, chosen):
                chosen.append(candidate)
        return chosen

    def _fits(self, candidate: Candidate, group: Sequence[Candidate]) -> bool:
        """Whether it can be on, and has something to do, beside the kept boosts and these."""
        return not any(
            other.excludes(candidate) or other.id in candidate.boost.covered_by
            for other in [*self.state.kept, *group]
        )

    def _try_recipe(self) -> Story:
        group = self._recipe()
        if not group:
            return
        refusal = self._refusal(self._cost_s(group), _promise(group), 0.0)
        if refusal is not None and refusal.why == "no_time":
            group = [max(group, key=lambda candidate: candidate.likely_gain)]
            if self._refusal(self._cost_s(group), group[0].promise, 0.0) is not None:
                return  # told by `_next`
        yield from self._try(group)

    # What to try next ---------------------------------------------------------------------------

    def _next(self) -> NextTry | None:
        """The candidate worth most for its time, or None if everything possible was tried."""
        near = [c for c, step in self.near if step <= self.machinery.steps()]
        turns = [self._addition(candidate, 1.0) for candidate in [*near, *self._first_tries()]]
        turns += self._removals(self._harmless if turns else ())
        if not turns:
            turns += [self._addition(c, AGAIN) for c, _ in self.open.values() if not c.again]
            turns += [self._addition(candidate, AGAIN) for candidate in self._variants()]
            turns += [self._wait_for_near(candidate, step) for candidate, step in self.near[:1]]
        possible = []
        for turn in turns:
            refusal = self._refusal(turn.cost_s, turn.gain, turn.compile_s)
            if refusal is None:
                possible.append(turn)
            else:
                self._not_now(turn.candidate, refusal)
        if turns and not possible:
            return self._next()  # these were told; others may be left
        return max(possible, key=lambda turn: turn.worth, default=None)

    def _first_tries(self) -> list[Candidate]:
        found = []
        for candidate in [c for c in self.untried if not c.variant]:
            cover = next((c for c in self.state.kept if c.id in candidate.boost.covered_by), None)
            better = next((c for c in self.state.kept if self._rounds_better(c, candidate)), None)
            if cover is not None:
                self._not_now(candidate, Refusal(f"{cover.id} is on and leaves it nothing to do"))
            elif better is not None:
                reason = f"it would take the place of {better.id}, which brings more"
                self._not_now(candidate, Refusal(reason))
            else:
                found.append(candidate)
        return found

    def _rounds_better(self, kept: Candidate, other: Candidate) -> bool:
        """Whether the other boost rounds in place of this one, and promises less than is there."""
        instead = other.excludes(kept) and bool(kept.boost.rounds_by and other.boost.rounds_by)
        less = other.promise <= kept.promise and PROMISED * other.promise <= self.state.gain
        return instead and less

    def _variants(self) -> list[Candidate]:
        """Other parameters of boosts that run, or of kept boosts if they compile."""
        return [c for c in self.untried if c.variant and not self._hopeless(c)]

    def _hopeless(self, candidate: Candidate) -> bool:
        if candidate.id in self.state.kept_ids:
            return False
        return candidate.boost.compiles or candidate.id not in self._measured

    def _removals(self, later: Collection[str]) -> list[NextTry]:
        """Kept boosts that were not compared alone; those that matter little come together."""
        members = [c for c in self.state.kept if c.id not in self._measured]
        members = [c for c in members if c.id not in later and not self._stays(c)]
        if len(self.state.kept) < 2 or not members:
            return []
        small = [c for c in members if c.likely_harm < SMALL and c.promise < 1 + 3 * SMALL]
        large = [c for c in members if c not in small]
        groups = [[c] for c in large] + ([small] if len(small) > 1 else [[c] for c in small])
        return [self._removal(group) for group in groups if len(group) < len(self.state.kept)]

    def _stays(self, candidate: Candidate) -> bool:
        """Whether it stays unmeasured: it is exact, and the few pairs that there is time for would
        not show so little harm.
        """
        small = candidate.boost.risk is Risk.EXACT and candidate.likely_harm < HARMLESS
        return small and self.comparer.affords(candidate) < decide.FEWEST

    def _addition(self, candidate: Candidate, part: float) -> NextTry:
        again = candidate.id in self.open or any(near is candidate for near, _ in self.near)
        tried = replace(candidate, again=again)
        compile_s = self.budget.compile_s(candidate)
        cost_s = self._cost_s([candidate]) + compile_s
        replaced = [other.promise for other in self.state.kept if other.id == candidate.id]
        gain = candidate.promise / max(replaced, default=1.0)
        loads = candidate.boost.loads
        pairs = 1 if gain > QUICK_GAIN else PAIRS_ON_AVERAGE
        expected_s = cost_s + (pairs - 1) * self.measure.pair_s(loads)
        worth = part * replace(candidate, promise=gain).likely_gain / expected_s
        return NextTry(worth, cost_s, compile_s, gain, candidate, lambda: self._try([tried]))

    def _removal(self, group: list[Candidate]) -> NextTry:
        pair_s = self.measure.pair_s()
        harm = sum(candidate.likely_harm for candidate in group)
        worth = harm / (PAIRS_ON_AVERAGE * pair_s)
        return NextTry(worth, pair_s, 0.0, 1 + harm, group[0], lambda: self._take_out(group))

    def _wait_for_near(self, candidate: Candidate, step: int) -> NextTry:
        def wait() -> Story:
            yield from self._train_on(max(1, step - self.machinery.steps()))

        wait_s = self._seconds_until(step) if self.budget.throw_away else 0.0
        return NextTry(
            0.0, wait_s + self._cost_s([candidate]), 0.0, candidate.promise, candidate, wait
        )

    def _seconds_until(self, step: int) -> float:
        return max(0, step - self.machinery.steps()) * self.comparer.step_s()

    def _worth_waiting_for(self, near: Sequence[Candidate]) -> bool:
        """Whether the recipe is compared once these have had their second look, as they are a large
        part of it.
        """
        if sum(candidate.likely_gain for candidate in near) < LIKELY:
            return False
        candidate, step = self.near[-1]
        wait = self._wait_for_near(candidate, step)
        soon = self._seconds_until(step) <= WORTH_WAITING_S
        return soon and self._refusal(wait.cost_s, wait.gain, 0.0) is None

    def _cost_s(self, group: Sequence[Candidate]) -> float:
        """The least seconds of a try: the Guard, and one pair."""
        loads = group[0].boost.loads
        guard_s = 0.0 if group[0].boost.moment is Moment.LOADER else GUARD_UNITS * self.state.now_s
        return guard_s + self.measure.pair_s(loads)

    def _refusal(self, cost_s: float, gain: float, compile_s: float) -> Refusal | None:
        now = self.machinery.steps(), self.comparer.step_s()
        return self.budget.refuses(cost_s + self.comparer.unsure_s(), gain, compile_s, *now)

    def _when_ready(self, turn: NextTry) -> Story:
        if self.budget.ready(turn.cost_s, turn.compile_s):
            yield from turn.begin()
        else:
            yield from self._train_on(1)

    def _not_now(self, candidate: Candidate, refusal: Refusal) -> None:
        """It gets no turn any more."""
        if candidate.id in self.state.kept_ids and not candidate.variant:
            self._measured.add(candidate.id)  # it stays as it is
            return
        self.near = [(near, step) for near, step in self.near if near.id != candidate.id]
        if candidate in self.untried:
            self.untried.remove(candidate)
        if candidate.id in self.open:
            _, answer = self.open.pop(candidate.id)
            if refusal.why == "no_time" and self._believed([candidate], answer):
                self._keep([candidate], answer, None, self.machinery.now(), 0.0)
            else:
                self.tell(candidate, "same", decide.why_not(answer), answer)
            return
        if candidate.variant:
            return
        kind: wire.LiveVerdict = "declined" if refusal.why is None else "untried"
        self.tell(candidate, kind, refusal.reason, why=refusal.why)

    # Trying -------------------------------------------------------------------------------------

    def _try(self, group: list[Candidate]) -> Story:
        """Try these on top of the kept boosts: first the Guard, then pairs."""
        ids = {candidate.id for candidate in group}
        self.trying = group
        self.untried = [c for c in self.untried if c.variant or c.id not in ids]
        self.untried = [c for c in self.untried if c not in group]
        self.near = [(near, step) for near, step in self.near if near.id not in ids]
        self.measure.switch(self._base(group))
        began, steps = self.machinery.now(), self.machinery.steps()
        if group[0].boost.compiles and not self.budget.throw_away:
            yield from self.machinery.compile_aside(group[0])
        checked = yield from self.machinery.check(group)
        guard_s = self.machinery.now() - began
        if not group[0].boost.compiles:
            self._guard_s = guard_s
        trained_s = (self.machinery.steps() - steps) * self.comparer.step_s()
        self.budget.lose(max(0.0, guard_s - trained_s))
        for candidate in group:
            if candidate.id in checked.refused:
                self._refused(candidate, checked.refused[candidate.id], began)
        sound = checked.sound
        if len(sound) > 1:
            sound = self._without(sound, checked.idle, began)
        later = [candidate for candidate, _ in self.near if candidate.id in ids]
        if len(group) > 1 and self._worth_waiting_for(later):
            yield from self._try_meanwhile(sound, checked.verdict, began, later)
            return
        start_s = guard_s if group[0].boost.compiles else 0.0
        if sound:
            yield from self._compare(sound, checked.verdict, began, start_s)
        self.trying = []
        self.measure.switch(self.state.on)

    def _try_meanwhile(
        self,
        sound: list[Candidate],
        verdict: GuardVerdict,
        began: float,
        near: list[Candidate],
    ) -> Story:
        """Compare the sound part of the recipe until the rest is due; unless it is clearly faster
        by then, all of it is tried together.
        """
        due = self.near[-1][1]
        answer = decide.answer([], self.state.noise)
        if sound:
            trial = [*self._base(sound), *(candidate.order for candidate in sound)]
            self._compared = sound
            wait_s = self._seconds_until(due)
            answer = yield from self.comparer.compare(sound, self.state.on, trial, most_s=wait_s)
            self._compared = []
        if answer.verdict == "faster":
            self._keep(sound, answer, verdict, began, 0.0)
            sound = []
        yield from self._train_on(max(0, due - self.machinery.steps()))
        yield from self._try([*sound, *(replace(other, again=True) for other in near)])

    def _compare(
        self,
        group: list[Candidate],
        verdict: GuardVerdict,
        began: float,
        start_s: float,
        most_s: float = math.inf,
    ) -> Story:
        """Take pairs without and with these, all found sound; if they are slower, compare halves of
        those that take hold.

        most_s: seconds until others have their turn.
        """
        trial = [*self._base(group), *(candidate.order for candidate in group)]
        if len(group) == 1 and not (yield from self._ready(group[0], trial)):
            return
        self._compared = group
        waits = len(group) > 1 and self._better_waits(group)
        if waits:
            most_s = FEW_FIRST * self.measure.pair_s()
        answer = yield from self.comparer.compare(group, self.state.on, trial, most_s=most_s)
        if len(group) > 1 and _leads(answer) and not waits:
            # Halves of it would have to show less, with less time: none of them seems to hurt.
            short = self.comparer.affordable_pairs() < FEW_PAIRS and not self.near
            if short or (highest_risk(group) == "exact" and math.isinf(most_s)):
                answer = yield from self.comparer.compare(group, self.state.on, trial, last=short)
        self._compared = []
        if answer.verdict not in ("faster", "broken", "nonfinite"):
            # The answer is that of the rest: these did nothing.
            group = self._without(group, self.comparer.idle(group), began)
            if not group:
                return
        alone = group[0]
        if answer.verdict == "faster" and not self._pays(answer, start_s):
            reason = f"{answer.gain:.2f}x, but the run is too short to pay for its start-up"
            self.tell(alone, "untried", reason, answer, began, verdict)
        elif answer.verdict == "faster":
            self._keep(group, answer, verdict, began, start_s)
        elif len(group) == 1 and self._stays_open(alone, answer):
            self.open[alone.id] = alone, answer
        elif self._believed(group, answer):
            self._keep(group, answer, verdict, began, start_s)
        elif len(group) > 1 and most_s < math.inf and answer.verdict == "unclear":
            self.untried += group
        elif len(group) > 1:
            first, second = _halves(group)
            # What is exact goes first, but promises less: it leaves time for what rounds.
            most_s = EXACT_S if _promise(first) < _promise(second) else math.inf
            yield from self._compare_half(first, verdict, began, answer, most_s)
            yield from self._compare_half(second, verdict, began, answer)
        else:
            self._drop(alone, answer, verdict, began)

    def _better_waits(self, group: Sequence[Candidate]) -> bool:
        """Whether a boost that compiles is likely to bring more than these, and affordable now."""
        likely = sum(candidate.likely_gain for candidate in group)
        turns = [self._addition(c, 1.0) for c in self._first_tries() if c.boost.compiles]
        return any(
            turn.candidate.likely_gain > likely
            and self._refusal(turn.cost_s, turn.gain, turn.compile_s) is None
            for turn in turns
        )

    def _compare_half(
        self,
        half: list[Candidate],
        verdict: GuardVerdict,
        began: float,
        whole: decide.Answer,
        most_s: float = math.inf,
    ) -> Story:
        self.measure.switch(self.state.on)
        gain = _promise(half)
        refusal = self._refusal(self.measure.pair_s(), gain, 0.0)
        if refusal is not None:
            reason = refusal.reason
            if refusal.why == "no_time" and whole.pairs:
                reason = f"no time left: with the others {decide.so_far(whole)}"
            for candidate in half:
                self.tell(candidate, "untried", reason, why=refusal.why)
        elif whole.verdict != "same" or gain > 1 + LIKELY:
            yield from self._compare(half, verdict, began, 0.0, most_s)
        else:
            for candidate in half:
                self.tell(candidate, "same", decide.why_not(whole), whole)

    def _ready(self, candidate: Candidate, trial: Orders) -> Generator[None, Tick, bool]:
        """Train for a while under a boost that gains nothing at first (a cache that fills).

        In a real run this costs nothing, so it may take its time. Returns False if the boost cannot
        show its gain in this time.
        """
        if not candidate.boost.fills and self.machinery.steps_to_ready(candidate.id) <= 0:
            return True
        began = self.machinery.now()
        self.measure.begin()
        self.measure.switch(trial)
        while self._may_get_ready(candidate):
            yield
        steps = self.machinery.steps_to_ready(candidate.id)
        if steps <= 0:
            self.budget.filling_s += self.machinery.now() - began
            return True
        self.measure.switch(self.state.on)
        reason = f"it gains nothing before another {steps:,} steps"
        self._not_now(candidate, Refusal(reason, "no_time"))
        return False

    def _may_get_ready(self, candidate: Candidate) -> bool:
        steps = self.machinery.steps_to_ready(candidate.id)
        wait_s = steps * self.comparer.step_s()
        if self.budget.throw_away:
            left_s = self.budget.left_s
            return 0 < wait_s < min(FILLING_S, FILLING_S if left_s is None else left_s / 2)
        left = None if self.budget.steps is None else self.budget.steps - self.machinery.steps()
        return 0 < wait_s < LIVE_READY_S and (left is None or steps < left / 2)

    def _take_out(self, group: list[Candidate]) -> Story:
        """Measure what boosts that were kept together bring beside the others."""
        began = self.machinery.now()
        ids = {member.id for member in group}
        others = [order for order in self.state.on if order.id not in ids]
        exact = highest_risk(group) == "exact"
        # Whether rounding that does no harm is worth keeping can wait until all else was tried.
        waits = not exact and not ids & self._harmless and bool(self._first_tries())
        answer = yield from self.comparer.compare(group, others, self.state.on, exact or waits)
        self.measure.switch(self.state.on)
        if answer.verdict in ("broken", "nonfinite"):
            self._broken(group, answer, began)
            return
        hurts = answer.verdict == "slower" or _leans_to_slower(answer)
        if waits and answer.verdict == "unclear" and not hurts:
            self._harmless |= ids
            return
        if len(group) > 1:
            if hurts:
                for member in group:
                    yield from self._take_out([member])
            else:
                self._measured |= ids
            return
        (member,) = group
        self._measured.add(member.id)
        rounds = member.boost.risk is not Risk.EXACT
        below = answer.gain < 1.0 and answer.pairs > 1  # one pair that is close to 1 says nothing
        useless = answer.verdict == "same" and (rounds or below)
        if hurts or useless or (rounds and below):
            # A doubtful gain must not make the rest look faster than it is.
            self.state.drop(member, answer.gain if answer.verdict == "slower" else 1.0)
            self.measure.switch(self.state.on)
            reason = f"beside the others: {decide.why_not(answer)}"
            self.tell(member, "dropped", reason, answer, began)
        else:
            stays = "" if answer.verdict == "faster" else f": {STAYS}"
            self.tell(member, "kept", f"beside all others{stays}", answer, began)

    def _broken(self, group: list[Candidate], answer: decide.Answer, began: float) -> None:
        """The loss broke under the kept boosts; no later step shows which of them did it."""
        rounding = [member for member in self.state.kept if member.boost.risk is not Risk.EXACT]
        for member in rounding or group:
            self.state.drop(member, None)
            self.tell(member, "different", f"with the others: {BROKEN}", answer, began)
        self.measure.switch(self.state.on)

    def _try_small_ones(self) -> Story:
        """Switch on exact boosts with small gains together: their sum may be beyond doubt."""
        group: list[Candidate] = []
        for candidate in self._small:
            if self._fits(candidate, group):
                group.append(candidate)
        if len(group) < 2 or self._refusal(2 * self.measure.pair_s(), 1.01, 0.0) is not None:
            return
        began = self.machinery.now()
        answer = yield from self.comparer.compare(
            group, self.state.on, [*self.state.on, *(candidate.order for candidate in group)]
        )
        if answer.verdict == "faster":
            self._keep(group, answer, None, began, 0.0)
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
            self._broken(group, answer, began)
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
            self.tell(candidate, "dropped", reason, answer)

    def _check_together(self) -> Story:
        """Check all kept boosts together against the program as written, since errors may
        add up.
        """
        state = self.state
        while state.kept:
            left_s = self.budget.left_s
            late = left_s is not None and left_s <= self._guard_s
            # A verdict that refused those that have since been dropped says nothing of the rest.
            if state.verdict is not None and state.verdict.passed and late:
                return
            self.measure.switch(state.on)
            verdict = yield from self.machinery.check_together(state.kept)
            state.verdict = verdict
            if verdict.passed or verdict.error is None:
                return
            risky = [member for member in state.kept if member.boost.risk is not Risk.EXACT]
            candidate = (risky or state.kept)[-1]
            state.drop(candidate, None)
            self.tell(candidate, "dropped", f"together with the others: {verdict.summary}")

    def _drop_idle(self, kept: Sequence[Candidate]) -> None:
        """Drop those that never took hold beside the others: they have no place in a plan."""
        idle = self.comparer.never_held(kept)
        if self.machinery.facts().autocast is None:
            lost = [c for c in kept if c.boost.needs and c.boost.needs not in self.state.kept_ids]
            idle |= {c.id: f"it does nothing without {c.boost.needs}" for c in lost}
        for candidate in [c for c in kept if c.id in idle]:
            self.state.drop(candidate, 1.0)
        self._without(kept, idle)

    def _without(
        self, group: Sequence[Candidate], idle: Mapping[str, str], began: float | None = None
    ) -> list[Candidate]:
        """The group without the boosts that did not take hold, which are told."""
        for candidate in [c for c in group if c.id in idle]:
            reason = f"did not engage: {idle[candidate.id]}"
            self.tell(candidate, "declined", reason, began=began)
        return [candidate for candidate in group if candidate.id not in idle]

    # Deciding -----------------------------------------------------------------------------------

    def _refused(self, candidate: Candidate, verdict: GuardVerdict, began: float) -> None:
        self._near_looks[candidate.id] += 1
        if verdict.near and self._near_looks[candidate.id] <= MOST_NEAR_LOOKS:
            due = self.machinery.steps() + self._near_again_steps(candidate)
            self.near.append((candidate, due))
            return
        kind: wire.LiveVerdict = "different" if verdict.error is not None else "declined"
        if verdict.failed:
            kind = "failed"
        self.tell(candidate, kind, verdict.reason, began=began, guarded=verdict)

    def _near_again_steps(self, candidate: Candidate) -> int:
        if not self.budget.throw_away or self._near_looks[candidate.id] > 1:
            return NEAR_AGAIN_STEPS
        affordable = int(NEAR_AGAIN_S / self.comparer.step_s())
        return min(NEAR_AGAIN_STEPS, max(NEAR_AGAIN_LEAST_STEPS, affordable))

    def _keep(
        self,
        group: list[Candidate],
        answer: decide.Answer,
        verdict: GuardVerdict | None,
        began: float,
        start_s: float,
    ) -> None:
        if not self.state.kept:
            self.state.verdict = verdict
            self.budget.reserved_s = self._reserved_s()  # the first unit may have been a slow one
        self.budget.found = True
        replaced = self.state.keep(group, answer.gain, answer.pairs)
        self.measure.switch(self.state.on)
        if len(group) == 1:
            self._measured.add(group[0].id)
        ids = {candidate.id for candidate in group}
        for other in replaced:
            if other.id not in ids:
                self.tell(other, "dropped", f"{group[0].id} is faster in its place")
        together = tuple(candidate.id for candidate in group) if len(group) > 1 else ()
        if answer.verdict == "unclear":
            reason = f"no time for more pairs: {decide.so_far(answer)}"
        else:
            reason = verdict.reason if verdict is not None else "too small to be seen alone"
        for candidate in group:
            self.tell(candidate, "kept", reason, answer, began, verdict, start_s, together=together)

    def _drop(
        self,
        candidate: Candidate,
        answer: decide.Answer,
        verdict: GuardVerdict,
        began: float,
    ) -> None:
        kind: wire.LiveVerdict
        if answer.verdict == "broken":
            kind, reason = "different", BROKEN
        elif answer.verdict == "nonfinite":
            kind, reason = "declined", OWN
        elif not self._without([candidate], self.comparer.never_held([candidate]), began):
            return
        else:
            kind = "slower" if answer.verdict == "slower" else "same"
            reason = decide.why_not(answer)
            self._measured.add(candidate.id)
        if kind == "same" and answer.gain > 1 and candidate.boost.risk is Risk.EXACT:
            self._small.append(candidate)
        self.tell(candidate, kind, reason, answer, began, verdict)

    def _stays_open(self, candidate: Candidate, answer: decide.Answer) -> bool:
        """Whether it is worth more pairs once all others have had their turn."""
        return (
            answer.verdict == "unclear"
            and answer.pairs < decide.MOST
            and answer.gain > 1 + decide.MATTERS
            and not candidate.again
            and (self.budget.left_s is not None or answer.gain > 1 + LIKELY)
        )

    def _believed(self, group: Sequence[Candidate], answer: decide.Answer) -> bool:
        """Whether these go into the plan although the time for their pairs is used up.

        After a throw-away run the plan is confirmed as a whole: an interval half as wide would
        exclude 1, or one two thirds as wide if there is no time for that. A boost that compiles
        must be beyond doubt.
        """
        share = 0.5 if self.budget.reserved_s else 2 / 3
        loads = group[0].boost.loads  # its blocks are long
        late = self.comparer.affordable_pairs() < 2
        expected = answer.gain <= SURPRISING * _promise(group)
        long = late and expected and self.measure.pair_s() > LONG_PAIR_S
        pairs = 2 if long or (loads and answer.gain > QUICK_GAIN) else decide.FEWEST
        return (
            self.budget.throw_away
            and (late or len(group) == 1)
            and not any(candidate.boost.compiles for candidate in group)
            and answer.verdict == "unclear"
            and answer.pairs >= pairs
            and answer.gain > 1 + LIKELY
            and answer.low > answer.gain ** (1 - 1 / share)
        )

    def _pays(self, answer: decide.Answer, start_s: float) -> bool:
        """Whether a boost that is compiled at every start wins that time back over a whole run."""
        if self.budget.steps is None or start_s < 2.0:
            return True
        return self.budget.steps * self.comparer.step_s() * (1 - 1 / answer.gain) > start_s

    def _base(self, group: Sequence[Candidate]) -> Orders:
        """The kept boosts that can be on beside these."""
        return [
            other.order
            for other in self.state.kept
            if not any(other.id == new.id or other.excludes(new) for new in group)
        ]

    def _train_on(self, units: int) -> Story:
        self.measure.switch(self.state.on)
        for _ in range(units):
            yield

    def tell(
        self,
        candidate: Candidate,
        kind: wire.LiveVerdict,
        reason: str,
        answer: decide.Answer | None = None,
        began: float | None = None,
        guarded: GuardVerdict | None = None,
        compile_s: float = 0.0,
        why: wire.WhyUntried | None = None,
        together: tuple[str, ...] = (),
    ) -> None:
        """Record a decision with the findings of the pairs and the Guard."""
        self.open.pop(candidate.id, None)
        self._decided.add(candidate.id)
        noise_floor = guarded.noise_floor if guarded is not None else None
        compared = answer if answer is not None and answer.pairs else None
        self.machinery.tell(
            wire.Decided(
                candidate.id,
                kind,
                reason,
                params=candidate.params,
                gain=compared.gain if compared is not None else None,
                low=compared.low if compared is not None else None,
                high=compared.high if compared is not None else None,
                pairs=compared.pairs if compared is not None else 0,
                step=self.machinery.steps(),
                elapsed_s=self.budget.elapsed_s,
                cost_s=self.machinery.now() - began if began is not None else 0.0,
                compile_s=compile_s,
                step_ms=1000 * self.state.now_s if kind == "kept" else None,
                gradient_error=guarded.error if guarded is not None else None,
                batch_noise=noise_floor.batch_noise if noise_floor is not None else None,
                own_noise=noise_floor.redrawn if noise_floor is not None else None,
                again=candidate.again,
                why_untried=why,
                together=together,
            )
        )


def _halves(group: list[Candidate]) -> list[list[Candidate]]:
    """Split by risk, exact boosts first; if they have the same risk, split in the middle."""
    exact = [candidate for candidate in group if candidate.boost.risk is Risk.EXACT]
    others = [candidate for candidate in group if candidate.boost.risk is not Risk.EXACT]
    if exact and others:
        return [exact, others]
    return [group[: len(group) // 2], group[len(group) // 2 :]]


def _promise(group: Sequence[Candidate]) -> float:
    """What they promise together."""
    return math.prod(candidate.promise for candidate in group)


def _leads(answer: decide.Answer) -> bool:
    """Whether it looks faster but not beyond doubt."""
    return answer.verdict == "unclear" and answer.gain > 1 + decide.MATTERS


def _leans_to_slower(answer: decide.Answer) -> bool:
    """Whether it leads by about a standard error: the interval is four of them wide on
    either side.
    """
    return math.log(answer.gain) < -0.25 * math.log(answer.high / answer.gain)
