"""Tells a rank that stands still while the others wait for it from one that is only slow.

A long time without a step proves nothing: evaluations and checkpoints take their time. The proof is
that some rank waits in the exchange, while another one does not, is at the same place in two looks,
and neither computes nor reads nor writes in between. A rank that is busy in an endless loop is not
found here: the ranks' own time limit in the exchange ends it.

With several nodes each node looks at its own ranks. A node whose ranks all wait blames none of
them; among the others the rank that is behind is blamed. Nodes tell each other in time what they
see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from flatout.nouns.nodes import NodesStill, StandStill
from flatout.running.ranks import stacks
from flatout.running.ranks.pulses import RankPulse, RankPulses

FACTOR = 10
"""Times the usual duration of a step."""
LEAD_S = 5.0
"""So long before the limit, nodes tell each other which of their ranks wait."""
AGAIN_S = 10.0
"""Until the next look, after one that found nothing."""
IDLE_CORES = 0.05
WAIT_S = 1.0

Families = Mapping[int, Callable[[], list[psutil.Process]]]
"""By rank, for each that runs: what finds its processes."""


class RankHang(NamedTuple):
    """A rank that hangs."""

    rank: int
    """The rank that the others wait for."""
    still_s: float
    place: str | None
    answers: list[stacks.RankStacks]


class HangSearch:
    """Looks for a rank that hangs when none has taken a step for long."""

    def __init__(self, still_s: float, look_s: float, native: bool = False) -> None:
        """still_s: the shortest time without a step that counts; look_s: between two looks at what
        a rank does; native: the program exchanges by itself.
        """
        self._still_s, self._look_s, self._native = still_s, look_s, native
        self._not_before = 0.0
        self.seen: StandStill | None = None
        """What the last look saw, or None if the ranks do not stand still."""
        self._others_waited = False

    def look(
        self,
        pulses: RankPulses,
        families: Families,
        now: float,
        others: NodesStill | None = None,
    ) -> RankHang | None:
        """The rank that hangs, or None if nothing has stood still for long or it is no hang.

        others: the ranks on other machines, or None if there are none.
        """
        by_rank = pulses.by_rank
        watched = [by_rank[rank] for rank in families if rank in by_rank]
        if len(watched) < len(families) or any(pulse.step is None for pulse in watched):
            return None
        others_wait = others is not None and others.waits
        if others_wait and not self._others_waited:
            self._not_before = now
        self._others_waited = others_wait
        still_s = min(pulse.still_s for pulse in watched)
        limit_s = max(self._still_s, FACTOR * (pulses.step_s or 0.0))
        if still_s < limit_s - min(LEAD_S, limit_s / 4):
            self.seen, self._not_before = None, 0.0
            return None
        if now < self._not_before:
            return None
        if still_s < limit_s:  # so that nodes know of each other at the limit
            self._not_before = now + limit_s - still_s
            self._first_look(watched)
            return None
        self._not_before = now + AGAIN_S
        return self._proof(watched, families, still_s, others)

    def _first_look(self, watched: list[RankPulse]) -> dict[int, str]:
        """The stacks of the ranks by rank. From now on the other nodes know which of them wait."""
        texts = _texts(_answers(watched))
        behind = self._not_waiting(watched, self._waiting(texts))
        steps = [pulse.step or 0 for pulse in behind]
        self.seen = StandStill(len(behind) < len(watched), min(steps, default=None))
        return texts

    def _proof(
        self,
        watched: list[RankPulse],
        families: Families,
        still_s: float,
        others: NodesStill | None,
    ) -> RankHang | None:
        first = self._first_look(watched)
        waiting = self._waiting(first)
        # The ranks with the lowest step among those that do not wait, on all machines.
        candidates = self._not_waiting(watched, waiting)
        steps = [pulse.step or 0 for pulse in candidates]
        if others is not None and others.least is not None:
            steps.append(others.least)
        suspects = [pulse for pulse in candidates if pulse.step == min(steps)]
        if not suspects and others is not None:
            return None  # they wait for a rank of another node
        if suspects and not self._is_missed(watched, waiting, suspects, others):
            return None
        before = {rank: _work(families[rank]()) for rank in families}
        time.sleep(self._look_s)
        after = {rank: _work(families[rank]()) for rank in families}
        answers = _answers(watched)
        second = _texts(answers)
        still = {rank for rank in families if _idle(before[rank], after[rank], self._look_s)}
        waits = self._waiting(second)
        if waiting and not waiting & waits:
            return None  # somebody went on
        blamed = [
            pulse
            for pulse in suspects
            if (rank := pulse.ring.header.rank) in still - waits
            and _frames(first.get(rank, "")) == _frames(second.get(rank, ""))
        ]
        # Each waits in another exchange.
        locked = not suspects and waiting & waits == still == set(families)
        if not blamed and not locked:
            return None
        pulse = min(blamed or watched, key=lambda pulse: pulse.step or 0)
        rank = pulse.ring.header.rank
        place = stacks.place(second.get(rank, ""))
        return RankHang(rank, still_s + self._look_s, place, answers)

    def _is_missed(
        self,
        watched: list[RankPulse],
        waiting: set[int],
        suspects: list[RankPulse],
        others: NodesStill | None,
    ) -> bool:
        """Whether some rank waits for the suspects: its stacks say so, or it is ahead of them."""
        behind = suspects[0].step or 0
        if waiting or any((pulse.step or 0) > behind for pulse in watched):
            return True
        return others is not None and (others.waits or (others.most or 0) > behind)

    @staticmethod
    def _not_waiting(watched: list[RankPulse], waiting: set[int]) -> list[RankPulse]:
        return [pulse for pulse in watched if pulse.ring.header.rank not in waiting]

    def _waiting(self, texts: Mapping[int, str]) -> set[int]:
        return {rank for rank, text in texts.items() if stacks.waits_for_others(text, self._native)}


def _answers(watched: Iterable[RankPulse]) -> list[stacks.RankStacks]:
    return stacks.ask(((pulse.ring, pulse.step) for pulse in watched), WAIT_S)


def _texts(answers: Iterable[stacks.RankStacks]) -> dict[int, str]:
    return {answer.ring.header.rank: answer.text for answer in answers}


def _frames(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("  File")]


def _work(family: list[psutil.Process]) -> tuple[float, int]:
    """What these processes have used so far: (core seconds, bytes read and written)."""
    seconds, size = 0.0, 0
    for process in family:
        with suppress(psutil.Error, AttributeError):
            times = process.cpu_times()
            seconds += times.user + times.system
            counters: Any = getattr(process, "io_counters")()  # noqa: B009  # macOS has none
            size += counters.read_bytes + counters.write_bytes
            size += getattr(counters, "read_chars", 0) + getattr(counters, "write_chars", 0)
    return seconds, size


def _idle(before: tuple[float, int], after: tuple[float, int], elapsed_s: float) -> bool:
    return after[0] - before[0] < IDLE_CORES * elapsed_s and after[1] == before[1]
