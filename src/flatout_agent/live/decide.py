"""Decide between two ways of running from paired blocks, after any number of pairs.

Each pair of neighbouring blocks gives one log-ratio: the time before over the time with the boosts.
Drift (clock, temperature, other programs) is common to both and cancels. The pairs may be inspected
after each one and stopped when the answer is clear: the interval is a confidence sequence, which
holds at all times at once. It is the asymptotic one of Waudby-Smith, Arbour, Sinha, Kennedy and
Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", Annals of
Statistics 52(6), 2024, theorem 2.2, https://arxiv.org/abs/2103.06476. With few pairs the standard
deviation is not known well. It is pooled with that of pairs of like blocks (at first with a usual
value), and widened like Student's t. So one pair decides where the difference is large, and only
there. `benchmarks/live_decisions.py` counts how often it is wrong.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

ALPHA = 0.01
"""Probability that the interval ever excludes the truth, over all looks."""
TIGHTEST_AT = 8
"""The confidence sequence is tightest after this many pairs."""
FEWEST = 4
"""No answer from fewer pairs than this ..."""
CLEAR = (math.log(1.5), math.log(1.3), math.log(1.2))
"""... except from one, two or three if each shows a difference this large: disturbances by other
programs have both signs."""
MOST = 24
"""After this many pairs, a difference that still cannot be seen is not worth more pairs."""
MATTERS = math.log(1.01)
"""A boost that gains less than 1 % is not worth a line of a plan."""
LEAST_NOISE = 0.003
"""The smallest standard deviation assumed for one log-ratio: clocks and schedulers are no
better."""
ENOUGH = 10
"""From this many pairs on, a boost's own deviation is more reliable than that of the program's
first steps, which are often unsteady."""
ALONE = 2.3
"""The factor that widens a deviation from few pairs if it exceeds the program's own."""
FAR, FAR_SHARE = 10.0, 0.2
"""A pair this many times as far from the median as usual was disturbed from outside. At most this
share of the pairs is left out."""
HOPELESS = 1.7
"""No more pairs are taken if the gain is this many standard errors below what matters. This costs
power, never a false keep, so it need not hold at all times at once."""


@dataclass(frozen=True)
class Noise:
    """The program's own noise: the standard deviation of the log-ratio of two like blocks."""

    deviation: float
    freedom: int
    """Its degrees of freedom: pairs minus one."""


PRIOR = Noise(0.05, 2)
"""Used until pairs of like blocks have been seen."""


PairVerdict = Literal["faster", "slower", "same", "unclear", "broken", "nonfinite"]
"""unclear: more pairs needed; broken: a loss is NaN or Inf with the boost, or a call failed;
nonfinite: the same without the boost."""


@dataclass(frozen=True)
class Answer:
    """The answer of the pairs so far."""

    verdict: PairVerdict
    gain: float
    """Geometric mean of the ratios: 1.4 is 40 % faster."""
    low: float
    high: float
    pairs: int

    @property
    def leads(self) -> bool:
        """Whether it looks faster but not beyond doubt."""
        return self.verdict == "unclear" and self.gain > 1 + MATTERS


def noise(ratios: list[float]) -> Noise:
    """The spread of log-ratios of the program against itself."""
    if len(ratios) < 2:
        return Noise(LEAST_NOISE, 0)
    mean = sum(ratios) / len(ratios)
    variance = sum((ratio - mean) ** 2 for ratio in ratios) / (len(ratios) - 1)
    return Noise(max(math.sqrt(variance), LEAST_NOISE), len(ratios) - 1)


def half_width(pairs: int, deviation: float) -> float:
    """Half the width of the confidence interval after this many pairs."""
    log_alpha = math.log(ALPHA)
    squared = (-2 * log_alpha + math.log(-2 * log_alpha) + 1) / TIGHTEST_AT
    grown = pairs * squared + 1
    inside = 2 * grown / (pairs**2 * squared) * math.log(math.sqrt(grown) / ALPHA)
    return deviation * math.sqrt(inside)


def deviation(ratios: list[float], own: Noise) -> float:
    """Standard deviation of one log-ratio, pooled with the program's own noise and widened."""
    freedom = min(own.freedom, 6) if len(ratios) < ENOUGH else 0
    mean = sum(ratios) / len(ratios)
    squares = sum((ratio - mean) ** 2 for ratio in ratios)
    total = freedom + len(ratios) - 1
    pooled = math.sqrt((freedom * own.deviation**2 + squares) / total) if total else own.deviation
    widened = max(pooled, LEAST_NOISE) * (1 + 3 / max(1, total))
    if len(ratios) < FEWEST:
        return widened
    alone = math.sqrt(squares / (len(ratios) - 1))
    return max(widened, alone * (1 + ALONE / (len(ratios) - 1)))


def undisturbed(ratios: list[float]) -> list[float]:
    """These log-ratios without those far from all others, when something else was busy."""
    if len(ratios) <= FEWEST:
        return ratios
    middle = statistics.median(ratios)
    spread = max(LEAST_NOISE, statistics.median(abs(ratio - middle) for ratio in ratios))
    near = [ratio for ratio in ratios if abs(ratio - middle) <= FAR * spread]
    return near if len(near) >= (1 - FAR_SHARE) * len(ratios) else ratios


def answer(ratios: list[float], own: Noise, most: int = MOST) -> Answer:
    """The verdict on these log-ratios; `unclear` until `most` pairs."""
    ratios = undisturbed(ratios)
    count = len(ratios)
    if not count:
        return Answer("unclear", 1.0, 0.0, math.inf, 0)
    mean = sum(ratios) / count
    spread = deviation(ratios, own)
    half = half_width(count, spread)
    low, high = mean - half, mean + half
    verdict: PairVerdict = "unclear"
    if count < FEWEST:
        if low > 0 and min(ratios) > CLEAR[count - 1]:
            verdict = "faster"
        elif high < 0 and max(ratios) < -CLEAR[count - 1]:
            verdict = "slower"
    else:
        if low > 0 and mean >= MATTERS:
            verdict = "faster"
        elif high < 0:
            verdict = "slower"
        elif high < MATTERS or mean + HOPELESS * spread / math.sqrt(count) < MATTERS:
            verdict = "slower" if mean + HOPELESS * spread / math.sqrt(count) < 0 else "same"
        elif count >= most:
            verdict = "same"
    return Answer(verdict, math.exp(mean), math.exp(low), math.exp(high), count)


WIDE = 1.2
"""An interval with ends this many times apart says little."""


TOO_WIDE = 2.0
"""Where the ends of an interval around 1 are so many times apart, its middle says nothing."""


def so_far(answer: Answer) -> str:
    """The answer on a boost that needs more pairs for a decision, in one line."""
    if _too_noisy(answer):
        return "too noisy to say so far"
    return f"{answer.gain:.2f}x so far [{answer.low:.2f}-{answer.high:.2f}]"


def why_not(answer: Answer) -> str:
    """The answer on a boost that is not kept, in one line."""
    spread = f"{answer.low:.2f}-{answer.high:.2f}"
    if answer.low < 1 < answer.high and answer.high > WIDE * answer.low:
        pairs = "1 pair" if answer.pairs == 1 else f"{answer.pairs} pairs"
        if _too_noisy(answer):
            return f"too noisy to say in {pairs}"
        return f"no clear answer in {pairs}: {answer.gain:.2f}x [{spread}]"
    if answer.low >= 1:
        return f"no time for more pairs: {so_far(answer)}"
    if answer.verdict == "slower" or answer.high < 1:
        return f"slower: {answer.gain:.2f}x [{spread}]"
    return f"no difference that matters: {answer.gain:.2f}x [{spread}]"


def _too_noisy(answer: Answer) -> bool:
    return answer.low < 1 < answer.high and answer.high > TOO_WIDE * answer.low
