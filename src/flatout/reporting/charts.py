"""Charts of a Tuned as Plotly figures in plain JSON; each one's title says what it shows.

Colours are names ("@plan") that the page resolves, so that light, dark and print all fit.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.nouns import units
from flatout.nouns.trial import Measurement, Verdict
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.reporting import outcome, plain
from flatout.reporting.outcome import Learning

Trace = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """One figure: its place in the page, its text, and its data."""

    id: str
    title: str
    note: str
    """How to read it; also for screen readers."""
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)


def charts(tuned: Tuned) -> dict[str, Chart]:
    """All charts that the numbers allow, by id."""
    candidates = [
        _waterfall(tuned) if tuned.plan else _gains(tuned),
        _losses(tuned),
        _run(tuned),
        _steps(tuned),
        _pairs(tuned.confirmation) if tuned.confirmation else None,
    ]
    return {chart.id: chart for chart in candidates if chart is not None}


def _waterfall(tuned: Tuned) -> Chart | None:
    head = outcome.headline(tuned)
    start, end = _finite(head.untouched.step_ms), _finite(head.plan.step_ms)
    if tuned.plan is None or start is None or end is None:
        return None
    names, deltas, current = ["as written"], [start], start
    for boost in tuned.plan.boosts:
        after = outcome.quotient(current, boost.gain)
        if after is not None:
            names.append(f"{_label(boost.id)} {_times(boost.gain)}")
            deltas.append(after - current)
            current = after
    saved = sorted(zip(deltas[1:], names[1:], strict=True))
    if abs(end - current) > 0.005 * start:
        names.append("together")
        deltas.append(end - current)
    if not saved:
        return None
    names.append("with the plan")
    most_ms, best = saved[0]
    title = f"From {_ms(start)} to {_ms(end)} per step: {best} saves the most, {_ms(-most_ms)}"
    note = (
        "Each bar is what one boost takes off the time per step, in the order in which they were "
        'added. "together" is what the A/B runs of the whole plan add to or take from the sum of '
        "the single measurements."
    )
    trace = _waterfall_trace([*deltas, end])
    # Room on the right: the number of a short bar stands beside it.
    axis = {"title": {"text": "time per step (ms)"}, "range": [0, 1.15 * max(start, end)]}
    return Chart("waterfall", title, note, [trace], _rows(names, axis))


def _waterfall_trace(values: list[float]) -> Trace:
    """Bars that start where the one before ended; the first and the last stand on zero."""
    start, *changes, end = values
    levels = list(itertools.accumulate(changes, initial=start))
    bases = [0.0, *map(min, itertools.pairwise(levels)), 0.0]
    between = [f"{_sign(value)}{_ms(abs(value))}" for value in changes]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(values))),
        "x": [abs(value) for value in values],
        "base": bases,
        "text": [_ms(start), *between, _ms(end)],
        "textposition": "auto",
        "textangle": 0,
        "constraintext": "none",
        "cliponaxis": False,
        "insidetextfont": {"color": "@card"},
        "marker": {
            "color": ["@untouched", *("@gain" if v < 0 else "@bad" for v in changes), "@plan"]
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _gains(tuned: Tuned) -> Chart | None:
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
    boost_count = units.count(len(trials), "boost")
    title = f"Largest gain of {boost_count} measured: {_label(best.tried)}, {_times(best.gain)}"
    trace = {
        "type": "scatter",
        "mode": "markers",
        "y": list(range(len(trials))),
        "x": [trial.gain for trial in trials],
        "marker": {"color": "@plan", "size": 11},
        "hovertemplate": "%{x:.3f}×<extra></extra>",
    }
    axis = {"title": {"text": "speed with it / without it (ratio)"}}
    layout = _rows([_label(trial.tried) for trial in trials], axis)
    layout["shapes"] = [_band("x", 1 - noise, 1 + noise, "@untouched"), _rule("x", 1.0)]
    note = f"The band is the noise: two runs of the same program differed by {units.share(noise)}."
    return Chart("gains", title, note, [trace], layout)


def _losses(tuned: Tuned) -> Chart | None:
    second_run, plan = outcome.second_untouched(tuned), outcome.plan_measured(tuned)
    traces = [trace for trace in _loss_traces(tuned) if trace is not None]
    if not traces:
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
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "loss"}}}
    return Chart("losses", title, note, traces, layout)


def _loss_traces(tuned: Tuned) -> list[Trace | None]:
    """The curves of the A/B runs where there are some, else those of the trials."""
    confirmation = tuned.confirmation
    if confirmation is not None and confirmation.untouched_losses:
        return [
            _line("as written", confirmation.untouched_losses, "@untouched", 4),
            _line("with the plan", confirmation.plan_losses, "@plan", 2),
        ]
    second_run, plan = outcome.second_untouched(tuned), outcome.plan_measured(tuned)
    return [
        _line("as written", tuned.baseline.losses, "@untouched", 4),
        _line("with the plan", plan.losses, "@plan", 2) if plan else None,
        _line("as written, again", second_run.losses, "@again", 2, "dot") if second_run else None,
    ]


def _run(tuned: Tuned) -> Chart | None:
    """Step times over the run in which boosts were switched: a point for each block of steps."""
    if not tuned.blocks:
        return None
    planned = {boost.id for boost in tuned.plan.boosts} if tuned.plan else set()
    groups = {
        "as written": [block for block in tuned.blocks if not block.on],
        "with some boosts on": [b for b in tuned.blocks if b.on and set(b.on) != planned],
        "with the plan": [b for b in tuned.blocks if b.on and set(b.on) == planned],
    }
    colours = ("@untouched", "@again", "@plan")
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [block.step for block in blocks],
            "y": [block.ms for block in blocks],
            "text": ["on: " + (", ".join(block.on) or "nothing") for block in blocks],
            "marker": {"color": colour, "size": 7},
            "hovertemplate": "step %{x}: %{y:.2f} ms<br>%{text}<extra></extra>",
        }
        for (name, blocks), colour in zip(groups.items(), colours, strict=True)
        if blocks
    ]
    first = tuned.blocks[0].ms
    last = groups["with the plan"][-1].ms if groups["with the plan"] else first
    title = f"From {_ms(first)} to {_ms(last)} per step while boosts were switched"
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "time per step (ms)"}, "rangemode": "tozero"},
        "showlegend": True,
        "shapes": _switches(tuned),
    }
    note = (
        "Each point is a block of neighbouring steps. A line marks where a boost was kept."
        " Drift (clocks, other programs) affects neighbours alike and cancels out."
    )
    return Chart("run", title, note, traces, layout)


def _switches(tuned: Tuned) -> list[dict[str, Any]]:
    """A line where the set that is on grew for good."""
    lines, size = [], 0
    for block in tuned.blocks:
        later = [after for after in tuned.blocks if after.step > block.step]
        if len(block.on) > size and all(set(block.on) <= set(after.on) for after in later):
            size = len(block.on)
            lines.append(_rule("x", float(block.step)))
    return lines


def _steps(tuned: Tuned) -> Chart | None:
    plan = outcome.plan_measured(tuned)
    traces = [
        _line("as written", tuned.baseline.steps_ms, "@untouched", 2),
        _line("with the plan", plan.steps_ms, "@plan", 2) if plan else None,
    ]
    known_traces = [trace for trace in traces if trace is not None]
    if not known_traces:
        return None
    title = _step_title(tuned.baseline, plan)
    note = "Mean step time of each block as written, and of each window under the plan."
    axis = {"title": {"text": "time per step (ms)"}, "rangemode": "tozero"}
    layout = {"xaxis": {"title": {"text": "block"}}, "yaxis": axis}
    return Chart("steps", title, note, known_traces, layout)


def _step_title(untouched: Measurement, plan: Measurement | None) -> str:
    before = outcome.median(untouched.steps_ms)
    over = units.count(len(untouched.steps_ms), "block")
    after = outcome.median(plan.steps_ms) if plan else None
    if plan is None or after is None:
        return f"The median step takes {_ms(before)} as written (over {over})"
    over = f"{len(untouched.steps_ms)} and {units.count(len(plan.steps_ms), 'block')}"
    return f"The median step takes {_ms(after)} instead of {_ms(before)} (over {over})"


def _pairs(confirmation: Confirmation) -> Chart | None:
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
    bands = []
    if confirmation.interval is not None:
        low, high = confirmation.interval
        note += f" The band is the 95% interval of the median, {_times(low)} to {_times(high)}."
        bands = [_band("y", low, high, "@plan")]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": list(range(1, len(ratios) + 1)),
        "y": ratios,
        "marker": {"color": "@plan", "size": 11},
        "hovertemplate": "pair %{x}: %{y:.3f}×<extra></extra>",
    }
    shapes = [*bands, _rule("y", confirmation.speedup)]
    if min(ratios) < 1.3:
        shapes.append(_rule("y", 1.0, "dot"))
    layout = {
        "xaxis": {"title": {"text": "pair"}, "dtick": 1, "range": [0.5, len(ratios) + 0.5]},
        "yaxis": {"title": {"text": "as written / plan (ratio of times)"}},
        "shapes": [shape for shape in shapes if shape],
    }
    return Chart("pairs", title, note, [trace], layout)


def _line(
    name: str, values: Sequence[float | None], colour: str, width: int, dash: str = "solid"
) -> Trace | None:
    finite = [None if value is None else _finite(value) for value in values]
    if all(value is None for value in finite):
        return None
    return {
        "type": "scatter",
        "mode": "lines" if len(finite) > 12 else "lines+markers",
        "name": name,
        "x": list(range(1, len(finite) + 1)),
        "y": finite,
        "line": {"color": colour, "width": width, "dash": dash},
        "marker": {"color": colour, "size": width + 3},
        "hovertemplate": "%{y:.4g}",
    }


def _rows(names: list[str], axis: dict[str, Any]) -> dict[str, Any]:
    labels = {
        "tickvals": list(range(len(names))),
        # Plotly reads a little HTML in its texts; a name must come out as it is.
        "ticktext": [html.escape(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
    return {"yaxis": labels, "xaxis": axis, "height": 100 + 42 * len(names)}


def _band(axis: str, low: float, high: float, colour: str) -> dict[str, Any]:
    if _finite(low) is None or _finite(high) is None:
        return {}
    place = {f"{axis}0": low, f"{axis}1": high, **_across(axis)}
    line = {"width": 0}
    return {"type": "rect", **place, "fillcolor": colour, "opacity": 0.15, "line": line}


def _rule(axis: str, at: float, dash: str = "solid") -> dict[str, Any]:
    if _finite(at) is None:
        return {}
    line = {"color": "@ink", "width": 1, "dash": dash}
    return {"type": "line", f"{axis}0": at, f"{axis}1": at, **_across(axis), "line": line}


def _across(axis: str) -> dict[str, Any]:
    other = "y" if axis == "x" else "x"
    return {f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1, "layer": "below"}


def _label(name: str | None) -> str:
    return plain.cut(plain.one_line(name or ""), 28)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _sign(value: float) -> str:
    return "−" if value < 0 else "+"


def _ms(value: float | None) -> str:
    return units.milliseconds(value)


def _times(value: float | None) -> str:
    return units.ratio(value).replace("x", "×")
