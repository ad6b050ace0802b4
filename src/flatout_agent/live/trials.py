"""One trial: boosts are added to those that are kept, or taken out, and compared.

Added boosts pass the Guard first. A group that is slower is halved until what helps is found.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

from flatout_agent.boost import Risk
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate, Refusal, highest_risk, promise_of
from flatout_agent.live.compare import Orders
from flatout_agent.live.decisions import LIKELY, Decisions
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.state import Story, Tick
from flatout_agent.live.turns import Turns
from flatout_agent.watch.window import FILLING_S

LIVE_READY_S = 300.0
"""How long a boost may take in a real run until it can show its gain: waiting costs nothing there.
A throw-away run allows `FILLING_S`, and so does the confirmation."""
FEW_PAIRS = 8
"""If there is time for fewer pairs, a recipe that seems faster gets them: none is left for parts
of it."""
FEW_FIRST = 2
"""A recipe that promises less than a boost that compiles gets so many pairs, and its parts their
turn after that one."""
EXACT_S = 8.0
"""The most seconds for exact boosts before those that round and promise more have their turn."""
STAYS = "neither clearly faster nor slower"


class Trials:
    """Carries out what has its turn."""

    def __init__(self, decisions: Decisions, turns: Turns) -> None:
        self.decisions, self.turns = decisions, turns
        self.machinery, self.state = decisions.machinery, decisions.state
        self.budget, self.comparer = decisions.budget, decisions.comparer
        self.measure = decisions.measure
        self.guard_s = 0.0
        """What the Guard took for the last boosts that were tried."""

    def add(self, group: list[Candidate]) -> Story:
        """Try these on top of the kept boosts: first the Guard, then pairs."""
        self.decisions.begin(group)
        self.measure.switch(self._base(group))
        began, steps = self.machinery.now(), self.machinery.steps()
        if group[0].boost.compiles and not self.budget.throw_away:
            yield from self.machinery.compile_aside(group[0])
        checked = yield from self.machinery.check(group)
        guard_s = self.machinery.now() - began
        if not group[0].boost.compiles:
            self.guard_s = guard_s
        trained_s = (self.machinery.steps() - steps) * self.comparer.step_s()
        self.budget.lose(max(0.0, guard_s - trained_s))
        for candidate in group:
            if candidate.id in checked.refused:
                self.decisions.refused(candidate, checked.refused[candidate.id], began)
        sound = checked.sound
        if len(sound) > 1:
            sound = self.decisions.without(sound, checked.idle, began)
        refused = [candidate for candidate in group if candidate.id in checked.refused]
        later = [c for c in refused if any(near is c for near, _ in self.decisions.near)]
        for_good = [c for c in refused if c.again or c not in later]
        instead = self.turns.in_place_of(for_good, sound) if len(group) > 1 else []
        if instead:
            give_way = [c for c in sound if any(c.excludes(other) for other in instead)]
            self.decisions.untried += give_way
            yield from self.add([c for c in sound if c not in give_way] + instead)
            return
        if len(group) > 1 and self.turns.worth_waiting_for(later):
            yield from self._try_meanwhile(sound, checked.verdict, began, later)
            return
        start_s = guard_s if group[0].boost.compiles else 0.0
        if sound:
            yield from self._compare(sound, checked.verdict, began, start_s)
        self.decisions.trying = []
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
        due = self.decisions.near[-1][1]
        answer = decide.answer([], self.state.noise)
        if sound:
            trial = [*self._base(sound), *(candidate.order for candidate in sound)]
            self.decisions.compared = sound
            wait_s = self.turns.seconds_until(due)
            answer = yield from self.comparer.compare(sound, self.state.on, trial, most_s=wait_s)
            self.decisions.compared = []
        if answer.verdict == "faster":
            self.decisions.keep(sound, answer, verdict, began, 0.0)
            sound = []
        yield from self.train_on(max(0, due - self.machinery.steps()))
        yield from self.add([*sound, *(replace(other, again=True) for other in near)])

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
        self.decisions.compared = group
        waits = len(group) > 1 and self.turns.better_waits(group)
        if waits:
            most_s = FEW_FIRST * self.measure.pair_s()
        answer = yield from self.comparer.compare(group, self.state.on, trial, most_s=most_s)
        if len(group) > 1 and answer.leads and not waits:
            # Halves of it would have to show less, with less time: none of them seems to hurt.
            short = self.comparer.affordable_pairs() < FEW_PAIRS and not self.decisions.near
            if short or (highest_risk(group) == "exact" and math.isinf(most_s)):
                answer = yield from self.comparer.compare(group, self.state.on, trial, last=short)
        self.decisions.compared = []
        if answer.verdict not in ("broken", "nonfinite"):
            # The answer is that of the rest: these did nothing.
            group = self.decisions.without(group, self.comparer.idle(group), began)
            if not group:
                return
        alone = group[0]
        if answer.verdict == "faster" and not self._pays(answer, start_s):
            reason = f"{answer.gain:.2f}x, but the run is too short to pay for its start-up"
            self.decisions.tell(alone, "untried", reason, answer, began, verdict)
        elif answer.verdict == "faster":
            self.decisions.keep(group, answer, verdict, began, start_s)
        elif len(group) == 1 and self._stays_open(alone, answer):
            self.decisions.open[alone.id] = alone, answer
        elif self.decisions.believed(group, answer):
            self.decisions.keep(group, answer, verdict, began, start_s)
        elif len(group) > 1 and most_s < math.inf and answer.verdict in ("unclear", "same"):
            self.decisions.untried += group
        elif len(group) > 1:
            compiles = self.turns.better_now(group, answer)
            if compiles is not None:
                self.decisions.untried += group
                yield from self.add([compiles])
                group = [candidate for candidate in group if self.turns.fits(candidate, ())]
                self.decisions.begin(group)
            # By risk, or in the middle if all have the same.
            first = [member for member in group if member.boost.risk is Risk.EXACT]
            second = [member for member in group if member.boost.risk is not Risk.EXACT]
            if not (first and second):
                first, second = group[: len(group) // 2], group[len(group) // 2 :]
            # What is exact goes first, but promises less: it leaves time for what rounds.
            most_s = EXACT_S if promise_of(first) < promise_of(second) else math.inf
            yield from self._compare_half(first, verdict, began, answer, most_s)
            yield from self._compare_half(second, verdict, began, answer)
        else:
            self.decisions.drop(alone, answer, verdict, began)

    def _compare_half(
        self,
        half: list[Candidate],
        verdict: GuardVerdict,
        began: float,
        whole: decide.Answer,
        most_s: float = math.inf,
    ) -> Story:
        self.measure.switch(self.state.on)
        gain = promise_of(half)
        refusal = self.turns.refusal(self.measure.pair_s(), gain, 0.0)
        if refusal is not None:
            reason = refusal.reason
            if refusal.why == "no_time" and whole.pairs:
                reason = f"no time left: with the others {decide.so_far(whole)}"
            for candidate in half:
                self.decisions.tell(candidate, "untried", reason, why=refusal.why)
        elif whole.verdict != "same" or gain > 1 + LIKELY:
            yield from self._compare(half, verdict, began, 0.0, most_s)
        else:
            for candidate in half:
                self.decisions.tell(candidate, "same", decide.why_not(whole), whole)

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
        self.decisions.not_now(candidate, Refusal(reason, "no_time"))
        return False

    def _may_get_ready(self, candidate: Candidate) -> bool:
        steps = self.machinery.steps_to_ready(candidate.id)
        wait_s = steps * self.comparer.step_s()
        left = math.inf
        if self.budget.steps is not None:
            left = self.budget.steps - self.machinery.steps()
        if self.budget.throw_away:
            left_s = self.budget.left_s
            most_s = min(FILLING_S, FILLING_S if left_s is None else left_s / 2)
            return 0 < wait_s < most_s and steps < left
        return 0 < wait_s < LIVE_READY_S and steps < left / 2

    def _stays_open(self, candidate: Candidate, answer: decide.Answer) -> bool:
        """Whether it is worth more pairs once all others have had their turn."""
        return (
            answer.leads
            and answer.pairs < decide.MOST
            and not candidate.again
            and (self.budget.left_s is not None or answer.gain > 1 + LIKELY)
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

    def train_on(self, units: int) -> Story:
        """So many units under what is kept."""
        self.measure.switch(self.state.on)
        for _ in range(units):
            yield

    def take_out(self, group: list[Candidate]) -> Story:
        """Measure what boosts that were kept together bring beside the others."""
        began = self.machinery.now()
        ids = {member.id for member in group}
        others = [order for order in self.state.on if order.id not in ids]
        exact = highest_risk(group) == "exact"
        # Whether rounding that does no harm is worth keeping can wait until all else was tried.
        waits = not exact and not ids & self.decisions.harmless and bool(self.turns.first_tries())
        answer = yield from self.comparer.compare(group, others, self.state.on, exact or waits)
        self.measure.switch(self.state.on)
        if answer.verdict in ("broken", "nonfinite"):
            self.decisions.broken(group, answer, began)
            return
        # It leads by about a standard error: the interval is four of them wide on either side.
        leans = math.log(answer.gain) < -0.25 * math.log(answer.high / answer.gain)
        hurts = answer.verdict == "slower" or leans
        if waits and answer.verdict == "unclear" and not hurts:
            self.decisions.harmless |= ids
            return
        if len(group) > 1:
            if hurts:
                for member in group:
                    yield from self.take_out([member])
            else:
                self.decisions.measured |= ids
            return
        (member,) = group
        self.decisions.measured.add(member.id)
        rounds = member.boost.risk is not Risk.EXACT
        below = answer.gain < 1.0 and answer.pairs > 1  # one pair that is close to 1 says nothing
        useless = answer.verdict == "same" and (rounds or below)
        if hurts or useless or (rounds and below):
            # A doubtful gain must not make the rest look faster than it is.
            if answer.verdict == "slower":
                self.state.drop(member, answer.gain)
            else:
                self.state.drop(member, 1.0)
                self.comparer.without_effect.add(member.id)
            self.measure.switch(self.state.on)
            reason = f"beside the others: {decide.why_not(answer)}"
            self.decisions.tell(member, "dropped", reason, answer, began)
        else:
            stays = "" if answer.verdict == "faster" else f": {STAYS}"
            self.decisions.tell(member, "kept", f"beside all others{stays}", answer, began)
