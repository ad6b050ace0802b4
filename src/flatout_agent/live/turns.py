"""Which boost has the next turn: the one likely to save most for its time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flatout_agent.boost import Moment, Risk
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate, Refusal
from flatout_agent.live.decisions import LIKELY, QUICK_GAIN, Decisions

GUARD_UNITS = 6
"""Units of work that the Guard takes: it repeats a call both ways."""
AGAIN = 0.05
"""An unclear boost, or other parameters, are worth this part of a first try."""
PROMISED = 1.25
"""A boost may well bring this many times what it promises."""
WORTH_WAITING_S = 15.0
"""The rest of a recipe waits at most this long for them."""
SMALL = 0.01
"""A boost expected to bring or cost less than this is not worth pairs of its own."""
HARMLESS = 0.02
"""A boost expected to cost less than this takes some pairs to be shown harmful."""
RISKY = 0.05
"""A boost expected to cost more than this, and more than it brings, is left out of the recipe."""
PAIRS_ON_AVERAGE = 6
"""Pairs needed until a difference of some percent is clear."""


@dataclass
class NextTurn:
    """Something to do next."""

    kind: Literal["add", "take out", "wait"]
    candidate: Candidate
    worth: float
    """Expected seconds saved in each second of the run, for each second of trial."""
    cost_s: float
    compile_s: float
    gain: float
    """Likely speed-up."""
    group: list[Candidate] = field(default_factory=list)
    """What is to be added or taken out."""
    due: int = 0
    """The step until which the program trains on."""


class Turns:
    """Chooses by what is known of each boost, and of the program's speed."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.machinery, self.state = decisions.machinery, decisions.state
        self.budget, self.comparer = decisions.budget, decisions.comparer
        self.measure = decisions.measure

    def best(self) -> NextTurn | None:
        """The turn worth most for its time, or None if everything possible was tried."""
        known = self.decisions
        near = [c for c, step in known.near if step <= self.machinery.steps()]
        turns = [self._addition(candidate, 1.0) for candidate in [*near, *self.first_tries()]]
        turns += self._removals(known.harmless if turns else ())
        if not turns:
            turns += [self._addition(c, AGAIN) for c, _ in known.open.values() if not c.again]
            # Other parameters of boosts that run, or of kept boosts if they compile.
            kept_ids = self.state.kept_ids
            for other in [candidate for candidate in known.untried if candidate.variant]:
                runs = other.id in known.measured and not other.boost.compiles
                if runs or other.id in kept_ids:
                    turns.append(self._addition(other, AGAIN))
            turns += [self._wait_for_near(candidate, step) for candidate, step in known.near[:1]]
        possible = []
        for turn in turns:
            refusal = self.refusal(turn.cost_s, turn.gain, turn.compile_s)
            if refusal is None:
                possible.append(turn)
            else:
                known.not_now(turn.candidate, refusal)
        if turns and not possible:
            return self.best()  # these were told; others may be left
        return max(possible, key=lambda turn: turn.worth, default=None)

    def first_tries(self) -> list[Candidate]:
        """The untried boosts that have something to do beside those that are kept."""
        found = []
        for candidate in [c for c in self.decisions.untried if not c.variant]:
            cover = next((c for c in self.state.kept if c.id in candidate.boost.covered_by), None)
            better = next((c for c in self.state.kept if self._rounds_better(c, candidate)), None)
            if cover is not None:
                reason = f"{cover.id} is on and leaves it nothing to do"
                self.decisions.not_now(candidate, Refusal(reason))
            elif better is not None:
                reason = f"it would take the place of {better.id}, which brings more"
                self.decisions.not_now(candidate, Refusal(reason))
            else:
                found.append(candidate)
        return found

    def goes_together(self, candidate: Candidate) -> bool:
        """Whether it may be tried in one go with others, and not alone."""
        boost = candidate.boost
        if boost.compiles or boost.loads or boost.tried_alone or candidate.variant:
            return False
        return candidate.likely_harm <= max(RISKY, candidate.likely_gain)

    def fits(self, candidate: Candidate, group: Sequence[Candidate]) -> bool:
        """Whether it can be on, and has something to do, beside the kept boosts and these."""
        return not any(
            other.excludes(candidate) or other.id in candidate.boost.covered_by
            for other in [*self.state.kept, *group]
        )

    def in_place_of(
        self, refused: Sequence[Candidate], sound: Sequence[Candidate]
    ) -> list[Candidate]:
        """The untried alternatives to boosts that the Guard refuses, best first, that can be on
        beside all sound ones that promise as much.
        """
        found: list[Candidate] = []
        for other in sorted(self.decisions.untried, key=lambda c: (-c.promise, c.id)):
            stay = [candidate for candidate in sound if candidate.promise >= other.promise]
            alternative = any(other.excludes(candidate) for candidate in refused)
            if alternative and self.goes_together(other) and self.fits(other, [*stay, *found]):
                found.append(other)
        return found

    def _rounds_better(self, kept: Candidate, other: Candidate) -> bool:
        """Whether the other boost rounds in place of this one, and promises less than is there."""
        instead = other.excludes(kept) and bool(kept.boost.rounds_by and other.boost.rounds_by)
        less = other.promise <= kept.promise and PROMISED * other.promise <= self.state.gain
        return instead and less

    def _removals(self, later: Collection[str]) -> list[NextTurn]:
        """Kept boosts that were not compared alone; those that matter little come together."""
        members = []
        for c in self.state.kept:
            # An exact one stays unmeasured if the few pairs that there is time for would not show
            # so little harm.
            harmless = c.boost.risk is Risk.EXACT and c.likely_harm < HARMLESS
            known = c.id in self.decisions.measured or c.id in later
            if not known and not (harmless and self.comparer.affords(c) < decide.FEWEST):
                members.append(c)
        if len(self.state.kept) < 2 or not members:
            return []
        small = [c for c in members if c.likely_harm < SMALL and c.promise < 1 + 3 * SMALL]
        large = [c for c in members if c not in small]
        groups = [[c] for c in large] + ([small] if len(small) > 1 else [[c] for c in small])
        pair_s, turns = self.measure.pair_s(), list[NextTurn]()
        for group in groups:
            if len(group) < len(self.state.kept):
                harm = sum(candidate.likely_harm for candidate in group)
                worth = harm / (PAIRS_ON_AVERAGE * pair_s)
                turns.append(NextTurn("take out", group[0], worth, pair_s, 0.0, 1 + harm, group))
        return turns

    def _addition(self, candidate: Candidate, part: float) -> NextTurn:
        near = any(near is candidate for near, _ in self.decisions.near)
        again = near or candidate.id in self.decisions.open
        tried = replace(candidate, again=again)
        compile_s = self.budget.compile_s(candidate)
        cost_s = self.cost_s([candidate]) + compile_s
        replaced = [other.promise for other in self.state.kept if other.id == candidate.id]
        gain = candidate.promise / max(replaced, default=1.0)
        loads = candidate.boost.loads
        pairs = 1 if gain > QUICK_GAIN else PAIRS_ON_AVERAGE
        expected_s = cost_s + (pairs - 1) * self.measure.pair_s(loads)
        worth = part * replace(candidate, promise=gain).likely_gain / expected_s
        return NextTurn("add", candidate, worth, cost_s, compile_s, gain, [tried])

    def _wait_for_near(self, candidate: Candidate, step: int) -> NextTurn:
        wait_s = self.seconds_until(step) if self.budget.throw_away else 0.0
        cost_s = wait_s + self.cost_s([candidate])
        return NextTurn("wait", candidate, 0.0, cost_s, 0.0, candidate.promise, due=step)

    def better_waits(self, group: Sequence[Candidate]) -> bool:
        """Whether a boost that compiles is likely to bring more than these, and affordable now."""
        likely = sum(candidate.likely_gain for candidate in group)
        return any(compiles.likely_gain > likely for compiles in self._affordable_compilers())

    def better_now(self, group: Sequence[Candidate], answer: decide.Answer) -> Candidate | None:
        """The boost that compiles and is likely to bring more than these show together, or None.

        answer: that of their pairs. If these are slower, one of them hurts, and the others may
        still bring what they promise.
        """
        if answer.pairs < decide.FEWEST or answer.gain < 1 - LIKELY:
            return None
        better = [c for c in self._affordable_compilers() if c.likely_gain > answer.gain - 1]
        return max(better, key=lambda candidate: candidate.likely_gain, default=None)

    def _affordable_compilers(self) -> list[Candidate]:
        turns = [self._addition(c, 1.0) for c in self.first_tries() if c.boost.compiles]
        return [
            turn.candidate
            for turn in turns
            if self.refusal(turn.cost_s, turn.gain, turn.compile_s) is None
        ]

    def worth_waiting_for(self, near: Sequence[Candidate]) -> bool:
        """Whether the recipe is compared once these have had their second look, as they are a large
        part of it.
        """
        if sum(candidate.likely_gain for candidate in near) < LIKELY:
            return False
        candidate, step = self.decisions.near[-1]
        wait = self._wait_for_near(candidate, step)
        soon = self.seconds_until(step) <= WORTH_WAITING_S
        return soon and self.refusal(wait.cost_s, wait.gain, 0.0) is None

    def seconds_until(self, step: int) -> float:
        """How long the program trains until this step."""
        return max(0, step - self.machinery.steps()) * self.comparer.step_s()

    def cost_s(self, group: Sequence[Candidate]) -> float:
        """The least seconds of a try: the Guard, and one pair."""
        loads = group[0].boost.loads
        guard_s = 0.0 if group[0].boost.moment is Moment.LOADER else GUARD_UNITS * self.state.now_s
        return guard_s + self.measure.pair_s(loads)

    def refusal(self, cost_s: float, gain: float, compile_s: float) -> Refusal | None:
        """Why a try of this cost is not worth it, or None if it may be: see `Budget.refuses`."""
        now = self.machinery.steps(), self.comparer.step_s()
        return self.budget.refuses(cost_s + self.comparer.unsure_s(), gain, compile_s, *now)
