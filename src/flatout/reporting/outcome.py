"""The result of a tuning, in the order of a reader's questions: how much, is it the same, why.

Terminal, JSON and HTML all take their numbers and words from here, so that they always agree.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.nouns import units
from flatout.nouns.trial import Guard, Measurement, Trial, Verdict
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.reporting import plain

LARGE = 0.5
"""A share of the batch noise from which on the program's own noise is told beside it."""


class TuneOutcome(enum.StrEnum):
    """The result of a tuning."""

    FASTER = "faster"  # confirmed in A/B runs
    LIVE = "live"  # measured while training, by switching between steps
    UNCONFIRMED = "unconfirmed"  # no A/B runs, or too noisy for so small a gain
    NOTHING = "nothing"  # no plan


class Learning(enum.StrEnum):
    """What is known about the loss curve under the plan."""

    SAME = "same"
    STATISTICAL = "statistical"  # only the losses could be compared
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class OutcomeSide:
    """The figures of one side."""

    step_ms: float | None = None
    samples_per_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Headline:
    """The two sides and their ratio. Step times come from the A/B runs if there were any."""

    answer: TuneOutcome
    untouched: OutcomeSide
    plan: OutcomeSide
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    pairs: int = 0


def headline(tuned: Tuned) -> Headline:
    """The numbers of the first two lines."""
    confirmation = tuned.confirmation
    if confirmation is not None and confirmation.disturbed:  # its figures say little
        confirmation = None
    untouched = _side(tuned.baseline, confirmation.untouched_ms if confirmation else ())
    if tuned.plan is None:
        return Headline(TuneOutcome.NOTHING, untouched, OutcomeSide())
    plan = _side(plan_measured(tuned), confirmation.plan_ms if confirmation else ())
    if confirmation is not None and untouched.samples_per_s is None:
        # A step of the program as written has as many samples as in the plan's run.
        scale = quotient(plan.step_ms, untouched.step_ms)
        if plan.samples_per_s is not None and scale is not None:
            untouched = replace(untouched, samples_per_s=plan.samples_per_s * scale)
    if confirmation is None or not confirmation.faster:
        speedup = tuned.plan.speedup or quotient(untouched.step_ms, plan.step_ms)
        answer = TuneOutcome.LIVE if tuned.live else TuneOutcome.UNCONFIRMED
        return Headline(answer, untouched, plan, speedup)
    return Headline(
        TuneOutcome.FASTER,
        untouched,
        plan,
        speedup=confirmation.speedup,
        interval=confirmation.interval,
        pairs=confirmation.pairs,
    )


def plan_measured(tuned: Tuned) -> Measurement | None:
    """The plan's run: that of the confirmation, else the last trial with exactly these boosts."""
    if tuned.plan is None or tuned.best is not None:
        return tuned.best if tuned.plan is not None else None
    planned_ids = {boost.id for boost in tuned.plan.boosts}
    runs = [
        trial.measured
        for trial in tuned.trials
        if set(trial.boosts) == planned_ids and trial.measured is not None
    ]
    return runs[-1] if runs else None


def is_untouched(trial: Trial) -> bool:
    """Whether it ran the program as written and tries nothing; its reason is its name."""
    return trial.tried is None and not trial.boosts and trial.measured is not None


def why_nothing(tuned: Tuned) -> str:
    """Why there is no plan."""
    if tuned.interrupted:
        return "interrupted before anything faster was found"
    if not tuned.tried:
        if tuned.live and tuned.trials:
            return "no boost could be fully tried before the program ended"
        if tuned.live:
            return "nothing could be tried: the program ended too soon"
        if any(trial.why_untried == "program_ended" for trial in tuned.trials):
            return "no boost could be fully tried before the program ended: let it train longer"
        return "no boost could be fully tried in the time given: give a longer --budget"
    if (confirmation := tuned.confirmation) is not None:
        result = pairs_told(confirmation)
        if not confirmation.guard.passed:
            return f"the fastest candidate learns differently (A/B runs: {result})"
        return f"no gain held up in A/B runs ({result})"
    if any(trial.verdict is Verdict.KEPT and not is_untouched(trial) for trial in tuned.trials):
        return "what looked faster at first was not, when it was measured again"
    if not tuned.noise:  # it was not measured
        return "nothing was clearly faster"
    return f"nothing was faster beyond the noise ({units.share(tuned.noise)})"


def second_untouched(tuned: Tuned) -> Measurement | None:
    """A further run of the untouched program: it shows which differences are noise."""
    runs = [trial.measured for trial in tuned.trials if is_untouched(trial)]
    further = (run for run in runs if run is not None and run != tuned.baseline)
    return next(further, None)


def guard_of_plan(tuned: Tuned) -> Guard | None:
    """The guard of the whole plan, or None if no run under it was compared."""
    if tuned.confirmation is not None:
        return tuned.confirmation.guard
    if tuned.live_guard is not None:
        return tuned.live_guard
    guards = [
        trial.guard
        for trial in tuned.trials
        if trial.verdict is Verdict.KEPT and trial.guard is not None
    ]
    return guards[-1] if guards and tuned.plan is not None else None


def learning(guard: Guard | None) -> Learning:
    """The guard's verdict on the loss curve."""
    if guard is None:
        return Learning.UNKNOWN
    if not guard.passed:
        return Learning.DIFFERENT
    return Learning.SAME if guard.gradient_compared else Learning.STATISTICAL


def learning_words(guard: Guard | None, every_figure: bool = True) -> str:
    """The same in one sentence, with the deciding figure or with every one."""
    if guard is None:
        return "not compared"
    verdict, reason = learning(guard), plain.one_line(guard.reason)
    figures = guard_numbers(guard)
    numbers = "; ".join(figures if every_figure else figures[:1]) or reason
    if verdict is Learning.SAME:
        return f"the same ({numbers})"
    if verdict is Learning.STATISTICAL:
        if figures and not every_figure:
            return f"the same, judging by the losses ({numbers})"
        explanation = reason or numbers
        return f"the same, judging by the losses; gradients not comparable ({explanation})"
    return f"NOT the same: {reason or numbers}"


def guard_numbers(guard: Guard) -> list[str]:
    """The guard's figures in words."""
    numbers = []
    if not guard.finite:
        numbers.append("NaN or Inf in the loss")
    relative = quotient(guard.gradient_error, guard.batch_noise)
    if guard.gradient_compared and relative is not None:
        own = quotient(guard.own_noise, guard.batch_noise)
        large = own is not None and relative > LARGE
        beside = f", {units.share(own)} between two runs as written" if large else ""
        numbers.append(f"gradient error {units.share(relative)} of batch noise{beside}")
    elif guard.gradient_compared and guard.gradient_error is not None:
        numbers.append(f"gradient error {units.share(guard.gradient_error)}")
    if guard.loss_sigma is not None and abs(guard.loss_sigma) < 1e9:
        # Rounded up, so that "within" stays true for the measured number.
        sigma = math.ceil(abs(guard.loss_sigma) * 10) / 10
        within = guard.passed and guard.redrawn_sigma is None
        words = f"loss {'within' if within else 'off by'} {sigma:.1f} sigma"
        if guard.redrawn_sigma is not None:
            words += f", and by {guard.redrawn_sigma:.1f} with other random numbers alone"
        numbers.append(words)
    return numbers


def best_by_boost(tuned: Tuned) -> list[Trial]:
    """One trial for each boost that is not in the plan: the one that came closest to it."""
    planned = {boost.id for boost in tuned.plan.boosts} if tuned.plan else set()
    best: dict[str, Trial] = {}
    for trial in tuned.trials:
        if trial.tried is None or trial.tried in planned:
            continue
        if trial.tried not in best or _closeness(trial) > _closeness(best[trial.tried]):
            best[trial.tried] = trial
    return list(best.values())


def dropped(tuned: Tuned) -> list[Trial]:
    """One trial for each boost that was measured and is not in the plan."""
    unmeasured = (Verdict.SKIPPED, Verdict.FAILED)
    return [trial for trial in best_by_boost(tuned) if trial.verdict not in unmeasured]


def untried(tuned: Tuned) -> list[Trial]:
    """One row for each boost that was never tried."""
    return [trial for trial in best_by_boost(tuned) if trial.verdict is Verdict.SKIPPED]


def skipped(tuned: Tuned) -> dict[str, list[str]]:
    """Reason -> boosts that were never tried because of it."""
    groups: dict[str, list[str]] = {}
    for trial in untried(tuned):
        reason = plain.one_line(trial.reason) or "no reason given"
        groups.setdefault(reason, []).append(str(trial.tried))
    return groups


def why_dropped(trial: Trial, noise: float) -> str:
    """Why a measured boost is not in the plan, in a few words."""
    reason = plain.last_line(trial.reason)
    if trial.verdict is Verdict.DIFFERENT:
        return f"learns differently: {reason}"
    if trial.verdict is Verdict.FAILED:
        return f"failed: {reason}"
    if trial.verdict is Verdict.KEPT and trial.gain is None:
        return "kept together with others in its trial, not in the plan"
    if trial.gain is None or not math.isfinite(trial.gain):
        return reason or str(trial.verdict)
    if trial.verdict is Verdict.KEPT:
        return f"{units.ratio(trial.gain)} in its trial, not kept beside the others"
    if trial.gain < 1 - noise:
        what = "slower here" if is_slower(trial) else "no clear answer"
        return f"{what}: {units.ratio(trial.gain)}"
    if trial.gain > 1 + noise:
        return f"{units.ratio(trial.gain)}, not kept{f': {reason}' if reason else ''}"
    return f"no gain beyond the noise: {units.ratio(trial.gain)}"


def pairs_told(confirmation: Confirmation) -> str:
    """The ratio of the confirmation's pairs, with their interval if there are several."""
    ratio = units.ratio(confirmation.speedup)
    if confirmation.interval is None:
        return f"one A/B pair: {ratio}"
    return f"{ratio}, 95% interval {units.ratios(confirmation.interval)}"


def is_slower(trial: Trial) -> bool:
    """Whether the trial shows that its boosts do slow the program down, not just that they may."""
    if trial.gain is None or trial.gain >= 1.0:
        return False
    return trial.interval is None or trial.interval[1] < 1.0


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    """Numerator / denominator, or None if that is not a finite number."""
    if numerator is None or not denominator:
        return None
    if not (math.isfinite(numerator) and math.isfinite(denominator)):
        return None
    ratio = numerator / denominator
    return ratio if math.isfinite(ratio) else None


def median(values: Sequence[float | None]) -> float | None:
    """The median of the known values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(finite) if finite else None


def _side(measured: Measurement | None, times_ms: Sequence[float]) -> OutcomeSide:
    confirmed_ms = median(times_ms)
    if measured is None:
        return OutcomeSide(step_ms=confirmed_ms)
    if confirmed_ms is None:
        return OutcomeSide(measured.step_ms, measured.samples_per_s, measured.peak_bytes)
    # Samples per step are the same in both runs; only the step time was measured again.
    scale = quotient(measured.step_ms, confirmed_ms)
    rate = measured.samples_per_s
    scaled = rate * scale if rate is not None and scale is not None else None
    return OutcomeSide(confirmed_ms, scaled, measured.peak_bytes)


def _closeness(trial: Trial) -> tuple[int, float]:
    order = [Verdict.SKIPPED, Verdict.FAILED, Verdict.DIFFERENT, Verdict.SLOWER, Verdict.KEPT]
    has_gain = trial.gain is not None and math.isfinite(trial.gain)
    return order.index(trial.verdict), trial.gain or 0.0 if has_gain else 0.0
