"""Charts of a Tuned; the title of each says what it shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from flatout.nouns import units
from flatout.nouns.trial import StepBlock, Verdict
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.reporting import outcome, plain
from flatout.reporting.chart import Axis, Bar, BarChart, Chart, Curve, CurveChart, Mark, line
from flatout.reporting.outcome import Learning

STEP_TIME = Axis("time per step", "ms", zero=True)


def charts(tuned: Tuned) -> dict[str, Chart]:
    """All charts that the numbers allow, by id."""
    candidates = [
        _waterfall(tuned) if tuned.plan else _gains(tuned),
        _losses(tuned),
        _run(tuned),
        _pairs(tuned.confirmation) if tuned.confirmation else None,
    ]
    return {chart.id: chart for chart in candidates if chart is not None}


def _waterfall(tuned: Tuned) -> BarChart | None:
    head = outcome.headline(tuned)
    start, end = _finite(head.untouched.step_ms), _finite(head.plan.step_ms)
    if tuned.plan is None or start is None or end is None:
        return None
    names, changes, current = ["as written"], list[float](), start
    for boost in tuned.plan.boosts:
        after = outcome.quotient(current, boost.gain)
        if after is not None:
            names.append(f"{_label(boost.id)} {_times(boost.gain)}")
            changes.append(after - current)
            current = after
    if not changes:
        return None
    most_ms, best = min(zip(changes, names[1:], strict=True))
    if abs(end - current) > 0.005 * start:
        names.append("together")
        changes.append(end - current)
    title = f"From {_ms(start)} to {_ms(end)} per step: {best} saves the most, {_ms(-most_ms)}"
    note = (
        "Each bar is what one boost takes off the time per step, in the order in which they were "
        'added. "together" is what the A/B runs of the whole plan add to or take from the sum of '
        "the single measurements."
    )
    levels = list(itertools.accumulate(changes, initial=start))
    spans = [(0.0, start), *itertools.pairwise(levels), (0.0, end)]
    texts = [
        _ms(start),
        *(f"{'−' if value < 0 else '+'}{_ms(abs(value))}" for value in changes),
        _ms(end),
    ]
    colours = ["untouched", *("gain" if value < 0 else "bad" for value in changes), "plan"]
    bars = [
        Bar(name, text, *span, colour)
        for name, text, span, colour in zip(
            [*names, "with the plan"], texts, spans, colours, strict=True
        )
    ]
    shown = 0.0, max(max(bar.begin, bar.end) for bar in bars)
    return BarChart("waterfall", title, note, STEP_TIME.title, bars, shown)


def _gains(tuned: Tuned) -> BarChart | None:
    trials = [
        trial
        for trial in outcome.best_by_boost(tuned)
        if _finite(trial.gain) is not None and trial.verdict is not Verdict.SKIPPED
    ]
    trials.sort(key=lambda trial: trial.gain or 0.0, reverse=True)
    if not trials:
        return None
    best = trials[0]
    noise = _finite(tuned.noise) or 0.0
    gains = [_finite(trial.gain) or 0.0 for trial in trials]
    shown = min(1 - noise, *gains), max(1 + noise, *gains)
    boost_count = units.count(len(trials), "boost")
    title = f"Largest gain of {boost_count} measured: {_label(best.tried)}, {_times(best.gain)}"
    note = f"The band is the noise: two runs of the same program differed by {units.share(noise)}."
    bars = [
        Bar(_label(trial.tried), _times(trial.gain), 1.0, gain, "plan")
        for trial, gain in zip(trials, gains, strict=True)
    ]
    axis, band = "speed with it / without it; a bar begins at 1×", (1 - noise, 1 + noise)
    return BarChart("gains", title, note, axis, bars, shown, band)


def _losses(tuned: Tuned) -> CurveChart | None:
    second_run, plan = outcome.second_untouched(tuned), outcome.plan_measured(tuned)
    curves = _loss_curves(tuned)
    if not curves:
        return None
    kind = outcome.learning(outcome.guard_of_plan(tuned)) if plan else None
    title = {
        None: "Loss of the program as written" + (", run twice" if second_run else ""),
        Learning.SAME: "The loss curves coincide",
        Learning.STATISTICAL: "The losses agree within chance",
        Learning.DIFFERENT: "The loss under the plan is not the same",
        Learning.UNKNOWN: "Loss with and without the plan, not tested for a difference",
    }[kind]
    guard = outcome.guard_of_plan(tuned) if plan else None
    numbers = "; ".join(outcome.guard_numbers(guard)) if guard else ""
    title += f": {numbers}" if numbers else ""
    note = "Loss of each step from the first on, with the same seeds and the same initial weights."
    return CurveChart("losses", title, note, Axis("step"), Axis("loss"), curves)


def _loss_curves(tuned: Tuned) -> list[Curve]:
    """Losses of the A/B runs if there are any, else of the trials; all end at the same step."""
    confirmation, again = tuned.confirmation, None
    if confirmation is not None and confirmation.untouched_losses:
        written, planned = confirmation.untouched_losses, confirmation.plan_losses
    else:
        second_run, plan = outcome.second_untouched(tuned), outcome.plan_measured(tuned)
        written, planned = tuned.baseline.losses, plan.losses if plan else ()
        again = _by_number("as written, again", second_run.losses if second_run else (), "again")
    curves = [
        _by_number("as written", written, "untouched", width=4),
        _by_number("with the plan", planned, "plan"),
        replace(again, dash=(2, 4)) if again is not None else None,
    ]
    known = [curve for curve in curves if curve is not None]
    steps = min((len(curve.y) for curve in known), default=0)
    return [replace(curve, x=curve.x[:steps], y=curve.y[:steps]) for curve in known]


def _run(tuned: Tuned) -> CurveChart | None:
    """Step times while boosts were switched during the run: a point for each block of steps."""
    if not tuned.blocks:
        return None
    planned = {boost.id for boost in tuned.plan.boosts} if tuned.plan else set()
    written = [block for block in tuned.blocks if not block.on]
    under_plan = [block for block in tuned.blocks if block.on and set(block.on) == planned]
    others = [block for block in tuned.blocks if block.on and set(block.on) != planned]
    curves = [
        _blocks("as written", written, "untouched"),
        _blocks("with some boosts on", others, "again"),
        _blocks("with the plan", under_plan, "plan"),
    ]
    before, after = _median_ms(written), _median_ms(under_plan)
    title = f"{_ms(before)} per step as written" if before else f"{_ms(after)} per step"
    if before and after:
        title = f"From {_ms(before)} to {_ms(after)} per step while boosts were switched"
    note = (
        "Each point is a block of neighbouring steps. A line marks where a boost was kept."
        " Drift (clocks, other programs) affects neighbours alike and cancels out."
    )
    curves = [curve for curve in curves if curve.x]
    return CurveChart("run", title, note, Axis("step"), STEP_TIME, curves, _switches(tuned))


def _blocks(name: str, blocks: Sequence[StepBlock], colour: str) -> Curve:
    texts = ["on: " + (", ".join(block.on) or "nothing") for block in blocks]
    steps, times_ms = [block.step for block in blocks], [block.ms for block in blocks]
    return Curve(name, steps, times_ms, colour, width=0, point=7, texts=texts)


def _switches(tuned: Tuned) -> list[Mark]:
    """A line at each block from which on a larger set of boosts stays switched on."""
    marks, size = list[Mark](), 0
    for block in tuned.blocks:
        later = [after for after in tuned.blocks if after.step > block.step]
        if len(block.on) > size and all(set(block.on) <= set(after.on) for after in later):
            size = len(block.on)
            marks.append(Mark("x", block.step, block.step))
    return marks


def _pairs(confirmation: Confirmation) -> CurveChart | None:
    ratios = [ratio for ratio in map(_finite, confirmation.ratios) if ratio is not None]
    if not ratios:
        return None
    faster = sum(ratio > 1 for ratio in ratios)
    if len(ratios) == 1:
        title = f"One A/B pair: {_times(confirmation.speedup)}"
    else:
        count = "All" if faster == len(ratios) else f"{faster} of"
        title = (
            f"{count} {len(ratios)} A/B pairs were faster: median {_times(confirmation.speedup)}"
        )
    note = "The program as written and the plan ran in turn, A B A B; each point is one pair."
    marks = [Mark("y", confirmation.speedup, confirmation.speedup)]
    if confirmation.interval is not None:
        low, high = confirmation.interval
        note += f" The band is the 95% interval of the median, {_times(low)} to {_times(high)}."
        marks.append(Mark("y", low, high, "plan"))
    if min(ratios) < 1.3:
        marks.append(Mark("y", 1.0, 1.0, dash=(2, 4)))
    marks = [mark for mark in marks if math.isfinite(mark.low) and math.isfinite(mark.high)]
    pair = Curve("", list(range(1, len(ratios) + 1)), ratios, "plan", width=0, point=11)
    axis = Axis("time as written / with the plan", "×")
    return CurveChart("pairs", title, note, Axis("pair"), axis, [pair], marks)


def _by_number(
    name: str, values: Sequence[float | None], colour: str, width: int = 2
) -> Curve | None:
    """The curve of values that are counted from 1, or None if no value is known.

    It ends at the last known value.
    """
    finite = [None if value is None else _finite(value) for value in values]
    while finite and finite[-1] is None:
        finite.pop()
    steps = list(range(1, len(finite) + 1))
    return line(name, steps, finite, colour, width) if finite else None


def _median_ms(blocks: Sequence[StepBlock]) -> float | None:
    return outcome.median([block.ms for block in blocks])


def _label(name: str | None) -> str:
    return plain.cut(plain.one_line(name or ""), 28)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(value: float | None) -> str:
    return units.milliseconds(value)


def _times(value: float | None) -> str:
    return units.ratio(value).replace("x", "×")
