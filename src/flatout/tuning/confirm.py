"""The confirmation: the program as written and the plan in turn, an interval on their ratio."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence

from flatout.knowledge import boosts as known
from flatout.measuring.duel import Side
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Guard
from flatout.nouns.tuned import Confirmation
from flatout.tuning.losses import SIGMAS, loss_sigma
from flatout_agent import wire

FEWEST_CALM = 2
"""With fewer undisturbed pairs of several, all count, and the confirmation is called disturbed."""
RESAMPLES = 2000
LEVEL = 0.95


def confirmation(untouched: Side, plan: Side, guard: Guard) -> Confirmation:
    """Ratios of the pairs, their median and interval; the guard with the losses of the whole duel.

    Pairs in which other programs took cores are left out if others remain.
    guard: the verdict of the trial that had all boosts of the plan on.
    """
    pairs = tuple(zip(untouched.windows_ms, plan.windows_ms, strict=True))
    either = [*map(any, zip(untouched.disturbed, plan.disturbed, strict=True))]
    either = either or [False] * len(pairs)  # it was not looked at
    calm = tuple(pair for pair, disturbed in zip(pairs, either, strict=True) if not disturbed)
    too_few = len(calm) < min(FEWEST_CALM, len(pairs))
    used = pairs if too_few else calm
    ratios = tuple(before / after for before, after in used)
    return Confirmation(
        pairs=len(ratios),
        ratios=ratios,
        speedup=statistics.median(ratios),
        interval=interval(ratios),
        disturbed=too_few,
        untouched_ms=tuple(before for before, _ in used),
        plan_ms=tuple(after for _, after in used),
        guard=_with_losses(guard, untouched, plan),
        untouched_losses=untouched.losses,
        plan_losses=plan.losses,
    )


def _with_losses(guard: Guard, untouched: Side, plan: Side) -> Guard:
    sigma = loss_sigma(plan.losses, untouched.losses, 0)
    pairs = zip(plan.losses, untouched.losses, strict=False)
    if any(loss is None and untouched_loss is not None for loss, untouched_loss in pairs):
        reason = "NaN or Inf in the confirmation where the untouched program has none"
        return dataclasses.replace(guard, passed=False, finite=False, reason=reason)
    if sigma is None:
        return guard
    if abs(sigma) > SIGMAS:
        reason = f"loss off by {sigma:+.1f} sigma in the confirmation"
        return dataclasses.replace(guard, passed=False, loss_sigma=sigma, reason=reason)
    reason = f"{guard.reason}; loss within {abs(sigma):.1f} sigma"
    return dataclasses.replace(guard, loss_sigma=sigma, reason=reason)


OWN = (6.0, 4.0, 3.0)
"""Limits for the losses of a plan that redraws, in units of what other random numbers cause; by
the number of runs with other numbers: a single run may come close by chance."""
FEWEST_OWN = 2
"""So many runs excuse a plan that does not redraw, within the limit for all plans."""


def losses_differ(guard: Guard) -> bool:
    """Whether it is for its finite losses that a plan is refused: other random numbers alone may
    move those as far.
    """
    return not guard.passed and guard.finite and guard.loss_sigma is not None


def redraws(plan: tuple[PlannedBoost, ...], facts: wire.JobFacts) -> bool:
    """Whether the program draws other random numbers under this plan, as in dropout."""
    draws = any(model.random_forward for model in facts.models)
    return draws or any(known.get(boost.id).redraws for boost in plan)


def as_redrawn(guard: Guard, own: Sequence[float], redrawn: bool = True) -> Guard:
    """The verdict on losses that differ, beside runs as written with other random numbers.

    own: differences of these runs' losses, in standard errors. redrawn: the plan draws other
    numbers itself. If it only rounds, an agent that acts on what it has learnt may still go another
    way at once, but then these runs differ as much.
    """
    own = [sigma for sigma in own if sigma]  # none at all: nothing was redrawn
    if guard.loss_sigma is None or len(own) < (1 if redrawn else FEWEST_OWN):
        return guard
    # The steps' own noise moves redrawn losses by about one standard error.
    spread = max(1.0, math.sqrt(statistics.fmean(sigma * sigma for sigma in own)))
    limit = OWN[min(len(own), len(OWN)) - 1] if redrawn else SIGMAS
    if abs(guard.loss_sigma) > limit * spread:
        return guard
    farthest = max(map(abs, own))
    sigma = f"loss off by {guard.loss_sigma:+.1f} sigma"
    reason = f"{sigma}, and by {farthest:.1f} with other random numbers alone"
    return dataclasses.replace(guard, passed=True, reason=reason, redrawn_sigma=farthest)


CLEAR = 1.25
"""Two pairs of whole runs are enough if each shows a difference of at least this ratio."""
ENOUGH = 5
"""This many pairs are enough if they agree on which is faster."""


def unclear_runs(ratios: tuple[float, ...]) -> bool:
    """Whether more pairs of whole runs may settle which is faster."""
    if len(ratios) == 2 and (min(ratios) >= CLEAR or max(ratios) <= 1 / CLEAR):
        return False
    return unclear(ratios)


def unclear(ratios: tuple[float, ...]) -> bool:
    """Whether more pairs of windows may settle how much faster the plan is.

    A window lasts a second, which one disturbance may fill: a median needs some.
    """
    if len(ratios) < ENOUGH:
        return True
    low, _ = interval(ratios) or (0.0, 0.0)
    return statistics.median(ratios) > 1.01 and low <= 1.0


def interval(ratios: tuple[float, ...], level: float = LEVEL) -> tuple[float, float] | None:
    """Bootstrap interval of the median over the pairs; the same for the same ratios.

    None for a single pair.
    """
    if len(ratios) < 2:
        return None
    generator = random.Random(0)  # the interval must not differ from one report to the next
    medians = sorted(
        statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    tail = (1 - level) / 2
    return medians[int(tail * RESAMPLES)], medians[int((1 - tail) * RESAMPLES) - 1]
