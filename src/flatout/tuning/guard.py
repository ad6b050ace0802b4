"""The Guard: does a trial still learn the same as the untouched program?

Three tests, each with its number: no NaN or Inf; the gradient of the first steps, taken at the same
weights on the same batches, differs by little beside the difference between two batches; the losses
of the window, paired by step, do not drift beyond their own spread.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from flatout.nouns.trial import Guard
from flatout_agent import wire

LIMIT = {"exact": 0.01, "rounding": 0.7}
"""Largest gradient error, as a share of the batch noise, by the highest risk that is on.

Rounding is noise on top of noise: at 0.7 it adds half (0.7 squared) of the variance that the choice
of the batch has anyway. A deep network with batch normalisation is that sensitive in its first
steps alone; see docs/guard.md."""
NORM_LIMIT = 0.1
"""Rounding may turn a gradient a little, but not make it shorter or longer by more than this share
(longer also by what an independent error adds): that is a bias, which does not average out."""
TENSOR_LIMIT = {"exact": 0.1, "rounding": 1.0}
"""The same for the one parameter that differs most, beside that parameter's own batch noise."""
LEAST_NOISE = 0.1
"""Batch noise taken where batches hardly differ (full-batch training): 10 % of the gradient."""
OWN_FACTOR = 1.5
"""A program that draws random numbers may differ from itself; a trial by so much more at most."""
SIGMAS = 3.0
LEAST_SPREAD = 0.01
"""Spread of the loss taken where the curve is smoother than this share of its value."""


@dataclass(frozen=True)
class Reference:
    """The untouched program, run twice."""

    noise: float | None
    """Relative distance between the gradients of two batches."""
    own: float | None
    """Relative distance between its two runs, which drew other random numbers; None: unknown."""
    losses: tuple[float | None, ...]
    guard_steps: int


def judge(
    guard: wire.GuardMeasured | None,
    losses: tuple[float | None, ...],
    reference: Reference,
    risk: str,
) -> Guard:
    """The verdict on one trial. risk: the highest of the boosts that were on."""
    sigma = loss_sigma(losses, reference.losses, reference.guard_steps)
    if not _finite(guard, losses, reference.losses):
        return _verdict(False, "NaN or Inf where the untouched program has none", sigma, False)
    if risk == "semantics":
        return _verdict(True, "not compared: it changes what is computed, as you allowed", sigma)
    failed = None if sigma is None or abs(sigma) <= SIGMAS else f"loss off by {sigma:+.1f} sigma"
    if guard is None or not guard.error:
        why = guard.reason if guard is not None and guard.reason else "no gradient was seen"
        text = failed or f"loss within {abs(sigma or 0.0):.1f} sigma"
        return _verdict(
            failed is None and sigma is not None,
            f"{text}; gradient not compared: {why}",
            sigma,
            gradient_compared=False,
        )
    return _with_gradient(guard, reference, risk, sigma, failed)


def _with_gradient(
    guard: wire.GuardMeasured,
    reference: Reference,
    risk: str,
    sigma: float | None,
    failed: str | None,
) -> Guard:
    noise = max(reference.noise or 0.0, LEAST_NOISE)
    error = max(guard.error)
    own = reference.own or 0.0
    limit = max(LIMIT[risk] * noise, OWN_FACTOR * own)
    told = f"gradient error {_percent(error / noise)} of batch noise"
    if own:
        told += f", {_percent(own / noise)} between two untouched runs"
    if error > limit:
        failed = f"{told}: more than {_percent(limit / noise)}"
    elif not own and guard.norm_ratio is not None and _biased(guard.norm_ratio, error):
        failed = f"gradient {_percent(guard.norm_ratio)} as long as it was"
    ratio = guard.worst_ratio
    if ratio is not None and not own and ratio > TENSOR_LIMIT[risk] and failed is None:
        failed = f"gradient of {guard.worst_tensor} off by {_percent(ratio)} of its batch noise"
    if sigma is not None and failed is None:
        told += f"; loss within {abs(sigma):.1f} sigma"
    return Guard(
        passed=failed is None,
        reason=failed or told,
        gradient_error=error,
        batch_noise=reference.noise,
        own_noise=reference.own,
        loss_sigma=sigma,
        finite=True,
        gradient_compared=True,
    )


def _biased(norm_ratio: float, error: float) -> bool:
    longest = math.sqrt((1 + NORM_LIMIT) ** 2 + error**2)
    return not 1 - NORM_LIMIT <= norm_ratio <= longest


def _verdict(
    passed: bool,
    reason: str,
    sigma: float | None,
    finite: bool = True,
    gradient_compared: bool = True,
) -> Guard:
    return Guard(
        passed=passed,
        reason=reason,
        loss_sigma=sigma,
        finite=finite,
        gradient_compared=gradient_compared and finite,
    )


def _finite(
    guard: wire.GuardMeasured | None,
    losses: tuple[float | None, ...],
    untouched: tuple[float | None, ...],
) -> bool:
    if guard is not None and not guard.finite:
        return False
    pairs = zip(losses, untouched, strict=False)
    return not any(mine is None and theirs is not None for mine, theirs in pairs)


def loss_sigma(
    losses: tuple[float | None, ...], untouched: tuple[float | None, ...], skip: int
) -> float | None:
    """Mean paired difference of two loss curves in units of its standard error; None: no losses.

    The spread is that of the untouched curve about its own trend: successive differences carry
    twice the variance of one loss. `skip`: first steps that are left out.
    """
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(losses[skip:], untouched[skip:], strict=False)
        if mine is not None and theirs is not None
    ]
    if len(pairs) < 3:
        return None
    curve = [theirs for _, theirs in pairs]
    steps = [b - a for a, b in itertools.pairwise(curve)]
    spread = math.sqrt(statistics.fmean(step * step for step in steps) / 2)
    level = statistics.fmean(abs(value) for value in curve)
    spread = max(spread, LEAST_SPREAD * level, 1e-12)
    mean = statistics.fmean(mine - theirs for mine, theirs in pairs)
    return mean / (spread * math.sqrt(2 / len(pairs)))


def _percent(ratio: float) -> str:
    if ratio >= 1000:
        return "over 100000 %"
    return f"{100 * ratio:.2g} %" if ratio < 0.1 else f"{100 * ratio:.0f} %"
