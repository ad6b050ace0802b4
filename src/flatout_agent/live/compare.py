"""Is it faster with these on? Pairs of blocks, until the answer is clear or its time is up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate, promise_of
from flatout_agent.live.measure import Measure
from flatout_agent.live.state import Machinery, State, Tick

Orders = list[wire.BoostOrder]
Comparing = Generator[None, Tick, decide.Answer]

SHARE, AHEAD_SHARE, RECIPE_SHARE = 0.1, 0.25, 0.5
"""Share of the remaining time that the pairs may take: of one boost, of one that seems faster, and
of the recipe."""
LITTLE_S, MOST_S = 5.0, 15.0
"""The most seconds that these pairs may take in any case: if little is promised, and if much is."""
FAR_SLOWER = math.log(0.8)
"""A boost that is slower by this much in two pairs gets no third, which would cost the run too
much. Dropping it wrongly costs a gain, never a result."""
CHEAP_S = 0.4
"""If a pair takes less than this, one pair decides nothing. The next has the opposite order, so
steps that grow as the program learns (an agent's episodes) do not look like a gain."""
SURPRISING = 1.5
"""One pair is not enough either for a gain that exceeds the boosts' promise by this factor: the
program's first steps, which serve as its first half, may have been disturbed."""
UNLIKELY = 0.5
"""Nor is one enough to show a boost this slow: something else may have held the program up."""
MUCH, FALLS_SHORT = 1.5, 0.5
"""Boosts that together promise at least so much, and reach at most this power of it as far as their
pairs tell, have one among them that hurts: parts of them show more than further pairs."""
KEPT_FIRST = 1.1
"""Boosts that gain so much together are kept first, and what hurts is taken out then."""
TOO_SOON = "only "
"""The beginning of a boost's reason when it has been on for too few steps to take hold."""
SEEN_STEPS = 4
"""A boost that has not taken hold in so many steps, half of them under it, does nothing here."""
SURE_PAIRS = 3
"""Results from fewer pairs are looked at once more at the end."""


class Comparer:
    """Compares the boosts being tried with those that are on. A later process of the tuning
    continues its comparisons.
    """

    def __init__(
        self,
        machinery: Machinery,
        state: State,
        budget: Budget,
        measure: Measure,
        earlier: Sequence[wire.Compared],
    ) -> None:
        """earlier: the comparisons of earlier processes of this tuning."""
        self.machinery, self.state, self.budget, self.measure = machinery, state, budget, measure
        self.so_far: decide.Answer | None = None
        """The answer of the last comparison."""
        self._pairs = {pairs.boosts: pairs for pairs in earlier}
        """All comparisons so far ..."""
        self._earlier = set(self._pairs)
        """... and those from earlier processes, each of which is continued once."""
        self.without_effect: set[str] = set()
        """Boosts that made no difference beside the kept ones: what was compared with them on holds
        without them."""
        self._began_step = 0
        """The step at which the last comparison began."""
        self._written: deque[float] = deque(maxlen=8)
        """Seconds of the last units, if they ran as written and undisturbed."""

    @property
    def compared(self) -> tuple[wire.Compared, ...]:
        """The comparisons and their pairs so far, for the next process."""
        return tuple(self._pairs.values())

    def see(self, tick: Tick) -> None:
        """A unit of work has ended; a unit as written serves as half of a first pair."""
        if self.machinery.on():
            self._written.clear()
        elif tick.clean:
            self._written.append(tick.seconds)
            self.measure.sizes.add(tick)

    def forget(self, group: Sequence[Candidate]) -> None:
        """Make the next comparison of these start afresh."""
        self._pairs.pop(_key(group), None)
        self._earlier.discard(_key(group))

    def compare(
        self,
        group: Sequence[Candidate],
        base: Orders,
        trial: Orders,
        harmless_is_enough: bool = False,
        last: bool = False,
        most_s: float = math.inf,
    ) -> Comparing:
        """Pairs of blocks under `base` and `trial` until the answer is clear, or its time is up, or
        none of these boosts does anything.

        harmless_is_enough: these need not gain anything, as long as they do not seem to cost
        anything. last: nothing else is to be tried, so all the time that is left is theirs. most_s:
        seconds until something better can be done.
        """
        key, kept_ids = _key(group), tuple(self.state.kept_ids)
        before = self._pairs.get(key, wire.Compared(key, (), ()))
        same_base = {*before.kept} - self.without_effect == {*kept_ids} - self.without_effect
        ratios = list(before.ratios) if same_base else []
        before_s = before.spent_s if key in self._earlier and ratios else 0.0
        self._earlier.discard(key)
        began, self._began_step = self.machinery.now(), self.machinery.steps()
        left_s = self._left_s(group)
        loads = any(candidate.boost.loads for candidate in group)
        promised = promise_of(group)
        self.measure.begin()
        self.measure.left_s = self.run_left_s()
        self.so_far = answer = self._answer(ratios)
        if before_s and (
            answer.verdict != "unclear"
            or before_s + self.measure.pair_s(loads) > self._most_s(group, answer, left_s)
        ):
            return answer
        while True:
            if ratios or loads:
                ratio = yield from self.measure.pair(base, trial, loads)
            else:
                ratio = yield from self.measure.first_pair(base, trial, list(self._written))
            if not math.isfinite(ratio):
                self._pairs.pop(key, None)
                broken: decide.PairVerdict = (
                    "broken" if self.measure.broken_by_trial else "nonfinite"
                )
                return replace(decide.answer(ratios, self.state.noise), verdict=broken)
            ratios.append(ratio)
            spent_s = before_s + self.machinery.now() - began
            self._pairs[key] = wire.Compared(key, kept_ids, tuple(ratios), spent_s)
            self.so_far = answer = self._answer(ratios)
            if len(self.idle(group)) == len(group):
                return answer
            cheap = self.measure.pair_s(loads) < CHEAP_S
            surprising = answer.gain > SURPRISING * promised or answer.gain < UNLIKELY
            first_of_two = len(ratios) == 1 and (cheap or surprising)
            if answer.verdict != "unclear" and not first_of_two:
                return answer
            few = answer.pairs < decide.FEWEST
            falls_short = promised > MUCH and answer.high < promised**FALLS_SHORT
            if falls_short and answer.gain < KEPT_FIRST and len(group) > 1 and not (few or last):
                return answer
            harmless = not few and answer.gain > 1 - decide.MATTERS
            if harmless and harmless_is_enough:
                return answer
            share_s = self._most_s(group, answer, left_s)
            if last and left_s is not None:
                share_s = min(MOST_S, left_s)
            if first_of_two and answer.verdict != "unclear":
                # It is settled by one more: that pair has all the time there is.
                if self.affordable_pairs() < 1:
                    return replace(answer, verdict="unclear")
            elif spent_s + self.measure.pair_s(loads) > min(share_s, most_s):
                return answer

    def affords(self, candidate: Candidate) -> float:
        """How many pairs of this one its share of the time allows."""
        most_s = self._most_s([candidate], self._answer([]), self._left_s([candidate]))
        return most_s / self.measure.pair_s()

    def affordable_pairs(self) -> float:
        """How many pairs there is time for in all."""
        left_s = self.budget.left_s
        return math.inf if left_s is None else left_s / self.measure.pair_s()

    def idle(self, group: Sequence[Candidate]) -> dict[str, str]:
        """Why boosts did not take hold in the last comparison; those that may still do so are left
        out.
        """
        seen = self.machinery.steps() - self._began_step >= SEEN_STEPS
        return self.never_held(group) if seen else {}

    def never_held(self, group: Sequence[Candidate]) -> dict[str, str]:
        """The same of boosts that have been on for some time."""
        reasons = {candidate.id: self.machinery.idle(candidate.id) for candidate in group}
        return {
            boost: reason
            for boost, reason in reasons.items()
            if reason is not None and not reason.startswith(TOO_SOON)
        }

    def _left_s(self, group: Sequence[Candidate]) -> float | None:
        """Seconds left for these, or None if there is no limit."""
        left_s = self.budget.left_s
        if left_s is None:
            return None
        left_s = max(0.0, left_s - self.unsure_s())
        # The next throw-away program continues what this one did not finish.
        if len(group) > 1 and not self.budget.throw_away:
            run_left_s = self.run_left_s()
            left_s = min(left_s, math.inf if run_left_s is None else run_left_s)
        return left_s

    def _answer(self, ratios: list[float]) -> decide.Answer:
        """The answer of these pairs; two that are far slower are enough."""
        answer = decide.answer(ratios, self.state.noise)
        clearly = min(FAR_SLOWER, -2 * self.state.noise.deviation)
        if answer.verdict == "unclear" and len(ratios) > 1 and max(ratios) < clearly:
            return replace(answer, verdict="slower")
        return answer

    def _most_s(
        self, group: Sequence[Candidate], answer: decide.Answer, left_s: float | None
    ) -> float:
        """Seconds allowed for all pairs of these: a small gain is not worth minutes of
        long steps.
        """
        recipe, promise = len(group) > 1, group[0].promise
        most_s = math.inf if recipe else min(MOST_S, LITTLE_S + 100 * (promise - 1))
        if left_s is None:
            return min(MOST_S, most_s)
        ahead = answer.gain > 1 + decide.MATTERS
        share = AHEAD_SHARE if ahead else SHARE
        if recipe and not self.state.kept:
            share = RECIPE_SHARE if ahead else AHEAD_SHARE
        return min(most_s, share * left_s)

    def unsure_s(self) -> float:
        """Seconds reserved to look once more at results from few pairs."""
        unsure = self.state.kept and self.state.pairs < SURE_PAIRS
        return self.measure.pair_s() if unsure else 0.0

    def step_s(self) -> float:
        """Seconds of one step with all kept boosts."""
        return self.state.now_s * self.machinery.units_per_step()

    def run_left_s(self) -> float | None:
        """Seconds until the program's last step, or None if nobody knows when that is."""
        if self.budget.steps is None:
            return None
        return max(0, self.budget.steps - self.machinery.steps()) * self.step_s()


def _key(group: Sequence[Candidate]) -> str:
    return " ".join(f"{candidate.id}{candidate.params}" for candidate in group)
