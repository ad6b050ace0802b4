"""The order of tries: every boost once, second looks when they are due, then other parameters.

What compiles comes last of the first turns: it takes longest, and depends on what is kept. A boost
without a clear answer, though it seems to gain far more than the next one promises, is measured
further before that: a burst of other programs may have hidden what the program needs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout_agent.live import candidates
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.paired import Answer

NEAR_AGAIN_STEPS = 30
"""Steps until a boost that the guard refused near its limit gets a second look: a deep network
amplifies errors in its first steps, and soon much less."""
LIKELIER = 3.0
"""So many times what the next boost promises is far more."""


class Turns:
    """The boosts that wait for their try in one live tuning."""

    def __init__(self, queue: Sequence[Candidate] = ()) -> None:
        self.trying: Candidate | None = None
        self.untried = list(queue)
        """In order; other parameters of a boost come after all first ones."""
        self.open: dict[str, tuple[Candidate, Answer]] = {}
        """Tried, without a clear answer in their share of the time: others come first."""
        self.ratios: dict[str, tuple[list[str], list[float]]] = {}
        """For these boosts: what was kept then, and the log-ratios so far."""
        self.near: list[tuple[Candidate, int]] = []
        """Refused near the guard's limit, and the step from which they are looked at again."""
        self._verdicts: dict[str, str] = {}
        self._dropped: list[tuple[Candidate, int]] = []
        self._again: list[Candidate] | None = None

    def next(self, step: int, kept_ids: Sequence[str]) -> Candidate | None:
        """The next candidate at this step, with these boosts kept; None: all had their turn."""
        self.trying = self._next(step, kept_ids)
        if self.trying in self.untried:
            self.untried.remove(self.trying)
        return self.trying

    def earlier_ratios(self, boost: str, kept_ids: Sequence[str]) -> list[float]:
        """Log-ratios of an earlier turn, valid as long as the same boosts are kept."""
        kept_then, ratios = self.ratios.pop(boost, ((), []))
        return ratios if list(kept_ids) == list(kept_then) else []

    def due(self, candidate: Candidate, step: int) -> int:
        """Steps to train before this second look."""
        return next((max(0, at - step) for near, at in self.near if near.id == candidate.id), 0)

    def hopeless(self, candidate: Candidate) -> bool:
        """Other parameters are tried only where the first ones ran; if compiled, where they won."""
        verdict = self._verdicts.get(candidate.id)
        worthwhile = ("kept",) if candidate.boost.compiles else ("kept", "slower", "same")
        return candidate.variant > 0 and verdict not in worthwhile

    def ended(self, candidate: Candidate, verdict: str, step: int, kept_count: int) -> None:
        """Note how its turn ended, at this step, with this many boosts kept."""
        self._verdicts[candidate.id] = verdict
        self.near = [(near, at) for near, at in self.near if near.id != candidate.id]
        if verdict == "near" and not candidate.again:
            self.near.append((candidate, step + NEAR_AGAIN_STEPS))
        elif verdict in ("slower", "same") and not candidate.again and not candidate.variant:
            self._dropped.append((candidate, kept_count))

    def _next(self, step: int, kept_ids: Sequence[str]) -> Candidate | None:
        first = [candidate for candidate in self.untried if candidate.variant == 0]
        quick = [candidate for candidate in first if not candidate.boost.compiles]
        if self.near and (self.near[0][1] <= step or not quick):
            return replace(self.near[0][0], again=True)
        if first:
            return self._likelier(first[0]) or first[0]
        if self._again is None:
            self._again = [replace(candidate, again=True) for candidate, _ in self.open.values()]
            self._again += candidates.retries(self._dropped, list(kept_ids))
        return self._again.pop(0) if self._again else next(iter(self.untried), None)

    def _likelier(self, waiting: Candidate) -> Candidate | None:
        """An open one that should be measured further before this one has its first turn."""
        if not self.open:
            return None
        candidate, answer = max(self.open.values(), key=lambda item: item[1].gain)
        far_more = answer.gain - 1 >= LIKELIER * (waiting.promise - 1)
        return replace(candidate, again=True) if far_more or waiting.boost.compiles else None
