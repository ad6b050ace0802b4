"""The speed of verified builds: rounds in which they take turns, each in its own process.

A single build's time varies with the machine's state; a ratio of two that took turns hardly does.
Rounds in which other programs took the cores from the first build are left out and repeated, if
enough others remain. If not, the figures are rough, and the user is told.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.exporting.worker import Broken, Worker
from flatout.nouns.exported import BatchPoint, Latency

ROUNDS = 12
MOST_ROUNDS = 18
"""The most rounds that are taken until `ROUNDS` of them were quiet."""
LEAST_QUIET = 6
"""With fewer quiet rounds, the disturbed ones count too."""
DISTURBED = 0.05
"""Share of a turn in which ready threads waited while other programs ran."""
COLD_CALLS = 2
"""A turn's first calls find caches and clocks as another process left them."""
P99_CALLS = 1000
MOST_CALLS = 20_000
"""The most calls in one turn."""
LEAST_GAIN = 1.05
"""If a doubled batch gains less than this, the search ends."""
MOST_BATCH = 1024
SLOW_S = 2.0
"""A batch size with a call longer than this many seconds is the last."""
POINT_TURNS = 3
TURN_LIMIT_S = 120.0
RESAMPLES = 2000
SEED = 0


@dataclass(frozen=True)
class Turn:
    """The result of one turn of a build."""

    ms: list[float]
    """Milliseconds of each call, without the cold ones."""
    waited: float
    """Share of it in which threads waited for a core, or 0 if the system does not report it."""


@dataclass(frozen=True)
class RoundCount:
    """A summary of the rounds."""

    taken: int
    disturbed: int
    left_out: bool
    """Whether the disturbed rounds are left out; if not, there were too many of them."""


@dataclass
class TimedBuild:
    """A loaded build and its measurements."""

    id: str
    worker: Worker
    rounds: dict[int, list[list[float]]] = field(default_factory=dict)
    """Batch size -> milliseconds of the calls of each round."""
    points: list[BatchPoint] = field(default_factory=list)
    broken: str = ""
    """Why it was not measured further."""

    def medians(self, batch: int) -> list[float]:
        """The median of each round."""
        return [statistics.median(times) for times in self.rounds.get(batch, ())]

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.worker.ask(order, TURN_LIMIT_S)
        except Broken as reason:
            self.broken = str(reason)
            return {}

    def warm(self, batch: int) -> None:
        self._order({"do": "warm", "batch": batch})

    def turn(self, batch: int, seconds: float, first: int) -> Turn:
        """Call it for `seconds`, beginning with input number `first`."""
        order = {
            "do": "time",
            "batch": batch,
            "seconds": seconds,
            "most": MOST_CALLS,
            "first": first,
        }
        answer = self._order(order)
        times: list[float] = answer.get("ms", [])
        return Turn(times[COLD_CALLS:] or times[-1:], answer.get("waited") or 0.0)

    def keep(self, batch: int, before: int, quiet: Sequence[int]) -> None:
        """After the first `before` rounds, keep only those with these numbers."""
        rounds = self.rounds.get(batch, [])
        late = [times for at, times in enumerate(rounds[before:]) if at in quiet]
        self.rounds[batch] = rounds[:before] + late


def in_rounds(
    builds: Sequence[TimedBuild], batch: Callable[[TimedBuild], int], seconds: float
) -> RoundCount:
    """Time every build for `seconds` or slightly more, in turns whose order changes."""
    for build in builds:
        build.warm(batch(build))
    before = {build.id: len(build.rounds.get(batch(build), ())) for build in builds}
    shares: list[float] = []
    quiet: list[int] = []
    while len(quiet) < ROUNDS and len(shares) < MOST_ROUNDS:
        shares.append(_round(builds, batch, seconds / ROUNDS, len(shares)))
        quiet = [at for at, share in enumerate(shares) if share <= DISTURBED]
    enough = len(quiet) >= LEAST_QUIET
    for build in builds if enough else ():
        build.keep(batch(build), before[build.id], quiet)
    return RoundCount(len(shares), len(shares) - len(quiet), enough)


def _round(
    builds: Sequence[TimedBuild],
    batch: Callable[[TimedBuild], int],
    seconds: float,
    number: int,
) -> float:
    """One turn of each build. Returns the share of its turn that the first waited for a core.

    Only the first counts: it is eager, with a thread for each core. A runtime that starts more
    threads keeps itself waiting.
    """
    waited, shift = 0.0, number % max(1, len(builds))
    for build in (*builds[shift:], *builds[:shift]):
        if build.broken:
            continue
        size = batch(build)
        turn = build.turn(size, seconds, sum(map(len, build.rounds.get(size, ()))))
        if turn.ms:
            build.rounds.setdefault(size, []).append(turn.ms)
        if build is builds[0]:
            waited = turn.waited
    return waited


def over_batches(builds: Sequence[TimedBuild], seconds: float, first_ms: dict[str, float]) -> None:
    """Speed of each build with batches 1, 2, 4 ..., until a larger one gains little."""
    active = list(builds)
    for build in active:
        build.points = [_point(1, first_ms[build.id])]
    batch = 2
    while active and batch <= MOST_BATCH:
        times: dict[str, list[float]] = {build.id: [] for build in active}
        for build in active:
            build.warm(batch)
        for _ in range(POINT_TURNS):
            for build in active:
                if not build.broken:
                    found = build.turn(batch, seconds / 8 / POINT_TURNS, 0).ms
                    times[build.id] += [statistics.median(found)] if found else []
        growing = []
        for build in active:
            # A batch that is too large does not affect the measurements of smaller ones.
            if build.broken or not times[build.id]:
                continue
            best = max(point.samples_per_s for point in build.points)
            point = _point(batch, statistics.median(times[build.id]))
            build.points.append(point)
            if point.samples_per_s >= LEAST_GAIN * best and point.ms < SLOW_S * 1e3:
                growing.append(build)
        active = growing
        batch *= 2


def _point(batch: int, ms: float) -> BatchPoint:
    return BatchPoint(batch, ms, batch / ms * 1e3)


def latency(build: TimedBuild, batch: int) -> Latency | None:
    """Percentiles of all calls, and the interval of the median over rounds."""
    medians = build.medians(batch)
    if not medians:
        return None
    calls = sorted(ms for times in build.rounds[batch] for ms in times)
    low, high = _median_interval(medians)
    return Latency(
        batch=batch,
        calls=len(calls),
        p50_ms=_percentile(calls, 0.50),
        p99_ms=_percentile(calls, 0.99) if len(calls) >= P99_CALLS else None,
        low_ms=low,
        high_ms=high,
    )


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, tuple[float, float]] | None:
    """Speed ratio from rounds in which both took turns, and its 95 % interval."""
    pairs = [math.log(a / b) for a, b in zip(slow, fast, strict=False) if a > 0 and b > 0]
    if not pairs:
        return None
    low, high = _median_interval(pairs)
    return math.exp(statistics.median(pairs)), (math.exp(low), math.exp(high))


def _median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by drawing the values again."""
    draw = random.Random(SEED)
    medians = (statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    found = sorted(medians)
    return _percentile(found, 0.025), _percentile(found, 0.975)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest of the sorted values."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share else 0)]
