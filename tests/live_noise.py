"""Noise of many kinds, as pairs of blocks of a program show it, and decisions taken in it.

For tests/agent/live/test_paired.py and benchmarks/live_decisions.py.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator

from flatout_agent.live import decide
from flatout_agent.live.compare import SURE_PAIRS
from flatout_agent.live.measure import REMEMBERED, TELLING

FIRST_PAIRS = 4
"""In `calm_first` and `restless_first`: so many pairs are unlike the later ones."""
Ratios = Iterator[float]
"""Log-ratios of neighbouring blocks, as one program gives them."""


def gauss(deviation: float) -> Callable[[random.Random], Ratios]:
    def stream(rng: random.Random) -> Ratios:
        while True:
            yield rng.gauss(0, deviation)

    return stream


def heavy_tails(rng: random.Random) -> Ratios:
    """Student's t with 3 degrees of freedom, at 2 %."""
    while True:
        chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3))
        yield 0.02 * rng.gauss(0, 1) / math.sqrt(chi / 3)


def drift(rng: random.Random) -> Ratios:
    """Blocks' speed wanders and each remembers the last; a pair takes A and B in changing order."""
    level = 0.0
    while True:
        times = []
        for _ in range(2):
            level = 0.9 * level + rng.gauss(0, 0.02)
            times.append(level + rng.gauss(0, 0.01))
        first = rng.random() < 0.5
        yield times[0] - times[1] if first else times[1] - times[0]


def bursts(rng: random.Random) -> Ratios:
    """Another program takes a quarter of one block in ten."""
    while True:
        a, b = (rng.gauss(0, 0.01) + (0.25 if rng.random() < 0.1 else 0) for _ in range(2))
        yield a - b


def calm_first(rng: random.Random) -> Ratios:
    """Measured against itself the program was ten times as calm as it is later."""
    for _ in range(FIRST_PAIRS):
        yield rng.gauss(0, 0.003)
    yield from gauss(0.03)(rng)


def restless_first(rng: random.Random) -> Ratios:
    """The first steps, as most programs have them: ten times as restless as the later ones."""
    for _ in range(FIRST_PAIRS):
        yield rng.gauss(0, 0.2)
    while True:
        yield rng.gauss(0, 0.02)


MODELS = {
    "gauss 1 %": gauss(0.01),
    "gauss 3 %": gauss(0.03),
    "gauss 10 %": gauss(0.1),
    "heavy tails": heavy_tails,
    "drift": drift,
    "bursts": bursts,
    "calm first": calm_first,
    "restless first": restless_first,
}


def answer(stream: Ratios, gain: float = 1.0) -> decide.Answer:
    """One decision as a tuning takes it: what few pairs have kept is compared once more."""
    alike: deque[float] = deque(maxlen=REMEMBERED)
    found = _once(stream, gain, alike)
    few = found.verdict == "faster" and found.pairs < SURE_PAIRS
    return _once(stream, gain, alike) if few else found


def _once(stream: Ratios, gain: float, alike: deque[float]) -> decide.Answer:
    """Between two pairs are two blocks that are alike."""
    ratios: list[float] = []
    while True:
        if ratios:
            alike.append(next(stream))
        ratios.append(next(stream) + math.log(gain))
        own = decide.noise(list(alike)) if len(alike) >= TELLING else decide.PRIOR
        found = decide.answer(ratios, own)
        if found.verdict != "unclear":
            return found
