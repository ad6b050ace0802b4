"""What the try of one boost costs, and how much of the tuning's time it may take."""

from __future__ import annotations

from collections.abc import Sequence

from flatout_agent.boost import Switch
from flatout_agent.live import blocks, paired
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.machinery import State
from flatout_agent.live.pairs import SKIP

LOADER_BLOCK_S = 0.8
"""Blocks of a boost that switches loading are longer: what workers have ready looks fast."""
LITTLE_S, MOST_S = 5.0, 15.0
"""Seconds that the pairs of one boost take at most: where it promises little, and much."""
COMPILE_S, COMPILE_LAYER_S, COMPILE_MOST_S = 12.0, 1.0, 60.0
"""Estimated seconds of a first compilation: at least, for each further layer, and at most."""
AUTOTUNE = 3.0
"""Factor on this where kernels are chosen by timing them."""
GUARD_UNITS = 6
"""Units of work that the guard takes: it repeats a call both ways."""
LEAST_WEIGHT, MOST_WEIGHT = 0.05, 0.3
"""Bounds on promised gains when time is shared out: none counts for nothing, none for all of it."""


class Costs:
    """Costs of one tuning, at its present speed."""

    def __init__(self, state: State, budget: Budget) -> None:
        self._state = state
        self._budget = budget
        self.layers = 0
        """Convolution and matrix layers of the program's models."""

    def floor_s(self, candidate: Candidate) -> float:
        """Seconds that a block of this boost takes at least."""
        return LOADER_BLOCK_S if candidate.boost.switch is Switch.ITERATOR else blocks.LEAST_S

    def pair_s(self, candidate: Candidate) -> float:
        """Seconds of one pair of blocks."""
        units = blocks.length(self._state.now_s, self.floor_s(candidate))
        return 2 * (units + SKIP / 2) * self._state.now_s

    def least_s(self, candidate: Candidate) -> float:
        """Seconds of a try at least: the guard, and the fewest pairs that may give an answer."""
        pairs_s = paired.CLEAR_AT * self.pair_s(candidate)
        return pairs_s + GUARD_UNITS * self._state.now_s + self.compile_s(candidate)

    def compile_s(self, candidate: Candidate) -> float:
        """Of that, seconds of a compilation; 0: it compiles nothing."""
        if not candidate.boost.compiles:
            return 0.0
        seconds = min(COMPILE_MOST_S, COMPILE_S + COMPILE_LAYER_S * self.layers)
        return (
            AUTOTUNE * seconds if "autotune" in str(candidate.params.get("mode", "")) else seconds
        )

    def gain(self, candidate: Candidate) -> float:
        """Likely speed-up over what is on: compilation in another mode replaces the first."""
        replaced = (other for other in self._state.kept if other.id == candidate.id)
        promises = [other.promise for other in replaced if candidate.boost.compiles]
        return candidate.promise / max(promises, default=1.0)

    def most_pairs(self, candidate: Candidate, untried: Sequence[Candidate]) -> int:
        """Pairs at most: a small promised gain is not worth minutes of long steps.

        Nor is any worth the time of the boosts that have had no turn yet.
        """
        allowed_s = min(MOST_S, LITTLE_S + 100 * (candidate.promise - 1))
        left_s = self._budget.left_s
        if left_s is not None:
            allowed_s = min(allowed_s, self._share_s(candidate, untried, left_s))
        pairs = int(allowed_s / max(self.pair_s(candidate), 1e-6))
        return max(paired.FEWEST, min(paired.MOST, pairs))

    def _share_s(self, candidate: Candidate, untried: Sequence[Candidate], left_s: float) -> float:
        """A share of the time that is left, by what each of the others promises."""
        waiting = [other for other in untried if other.variant == 0 and other is not candidate]
        compile_s = max(map(self.compile_s, waiting), default=0.0)
        if left_s > 2 * compile_s:
            left_s -= compile_s
        left_s -= sum(GUARD_UNITS * self._state.now_s for _ in waiting)
        other_weights = sum(map(_weight, waiting))
        return max(0.0, left_s) * _weight(candidate) / (_weight(candidate) + other_weights)


def _weight(candidate: Candidate) -> float:
    return min(MOST_WEIGHT, max(LEAST_WEIGHT, candidate.promise - 1))
