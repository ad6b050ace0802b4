"""Whose turn it is: every boost once, second looks as soon as they are due, then other parameters.

What compiles comes last of the first turns: it takes longest, and depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout_agent.live import candidates
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.paired import Answer

NEAR_AGAIN_STEPS = 30
"""Where the guard refused a boost near its limit, it gets its second look after so many steps: a
deep network amplifies errors in its first steps, and soon much less."""


class Turns:
    """The boosts that wait for their try in one live tuning."""

    def __init__(self, found: Sequence[Candidate] = ()) -> None:
        self.trying: Candidate | None = None
        self.untried = list(found)
        """In order; other parameters of a boost come after all first ones."""
        self.open: dict[str, tuple[Candidate, Answer]] = {}
        """Tried, without a clear answer in their share of the time: others come first."""
        self.ratios: dict[str, tuple[list[str], list[float]]] = {}
        """Of those, what was kept then, and the log-ratios so far."""
        self.near: list[tuple[Candidate, int]] = []
        """Refused near the guard's limit, and the step from which they are looked at again."""
        self._verdicts: dict[str, str] = {}
        self._dropped: list[tuple[Candidate, int]] = []
        self._again: list[Candidate] | None = None

    def next(self, step: int, kept: Sequence[str]) -> Candidate | None:
        """Whose turn it is at this step, with these boosts kept; None: all had theirs."""
        self.trying = self._next(step, kept)
        if self.trying in self.untried:
            self.untried.remove(self.trying)
        return self.trying

    def known(self, boost: str, kept: Sequence[str]) -> list[float]:
        """Log-ratios of an earlier turn, which hold as long as the same boosts are kept."""
        then, ratios = self.ratios.pop(boost, ((), []))
        return ratios if list(kept) == list(then) else []

    def due(self, item: Candidate, step: int) -> int:
        """Steps to train before this second look."""
        return next((max(0, at - step) for near, at in self.near if near.id == item.id), 0)

    def hopeless(self, item: Candidate) -> bool:
        """Other parameters are tried where the first ones ran, and compiled anew where they won."""
        verdict = self._verdicts.get(item.id)
        worth = ("kept",) if item.boost.compiles else ("kept", "slower", "same")
        return item.variant > 0 and verdict not in worth

    def ended(self, item: Candidate, verdict: str, step: int, kept: int) -> None:
        """How its turn ended, at this step, with so many boosts kept."""
        self._verdicts[item.id] = verdict
        self.near = [(near, at) for near, at in self.near if near.id != item.id]
        if verdict == "near" and not item.again:
            self.near.append((item, step + NEAR_AGAIN_STEPS))
        elif verdict in ("slower", "same") and not item.again and not item.variant:
            self._dropped.append((item, kept))

    def _next(self, step: int, kept: Sequence[str]) -> Candidate | None:
        first = [item for item in self.untried if item.variant == 0]
        quick = [item for item in first if not item.boost.compiles]
        if self.near and (self.near[0][1] <= step or not quick):
            return replace(self.near[0][0], again=True)
        if first:
            return first[0]
        if self._again is None:
            self._again = [replace(item, again=True) for item, _ in self.open.values()]
            self._again += candidates.retries(self._dropped, list(kept))
        return self._again.pop(0) if self._again else next(iter(self.untried), None)
