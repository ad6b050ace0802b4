"""Do two loss curves with the same seeds agree, step by step?

The Guard compares gradients (see docs/guard.md); this second test runs in fresh processes, with
the program's own loss function.
"""

from __future__ import annotations

import itertools
import math
import statistics

SIGMAS = 3.0
MOST_LOSSES = 500
"""Losses that are compared at most: over thousands of steps, training turns differences of rounding
into another path that is as good."""
LEAST_SPREAD = 0.01
"""The least spread assumed for a smooth curve, as a share of its value."""


def loss_sigma(
    losses: tuple[float | None, ...], untouched: tuple[float | None, ...], skip: int
) -> float | None:
    """Mean paired difference of two loss curves in its standard errors, or None without losses.

    The spread is that of the untouched curve about its own trend: successive differences have
    twice the variance of one loss. `skip`: number of first steps to leave out.
    """
    compared = slice(skip, skip + MOST_LOSSES)
    pairs = [
        (loss, untouched_loss)
        for loss, untouched_loss in zip(losses[compared], untouched[compared], strict=False)
        if loss is not None and untouched_loss is not None
    ]
    if len(pairs) < 3:
        return None
    curve = [untouched_loss for _, untouched_loss in pairs]
    steps = [b - a for a, b in itertools.pairwise(curve)]
    spread = math.sqrt(statistics.fmean(step * step for step in steps) / 2)
    level = statistics.fmean(abs(value) for value in curve)
    spread = max(spread, LEAST_SPREAD * level, 1e-12)
    mean = statistics.fmean(loss - untouched_loss for loss, untouched_loss in pairs)
    return mean / (spread * math.sqrt(2 / len(pairs)))
