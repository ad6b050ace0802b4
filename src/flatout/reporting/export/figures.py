"""Pictures of an ExportResult: latency against batch, accuracy against speed; Plotly as plain JSON.

Builds have numbers, which the page explains once: a dozen names would not fit beside their points.
Colours are names ("@plan") that the page resolves, as in `charts`.
"""

from __future__ import annotations

import html
import math

from flatout.nouns import units
from flatout.nouns.exported import BuildPrecision, BuildState, ExportCandidate, ExportResult
from flatout.reporting.charts import Chart, Trace
from flatout.reporting.export import words

DASHES = {
    BuildPrecision.EXACT: "solid",
    BuildPrecision.ROUNDING: "dash",
    BuildPrecision.QUANTISED: "dot",
}
SYMBOLS = {
    BuildPrecision.EXACT: "circle",
    BuildPrecision.ROUNDING: "diamond",
    BuildPrecision.QUANTISED: "square",
}
NEAR = (0.08, 0.06)
"""Shares of the axes within which two points have one label."""
EDGE = 0.05
"""Shares of the axis at its ends, where a centred label would not fit."""
MARKS = (
    "Solid or round: float32; dashed or diamond: rounded inside; dotted or square: quantised. Blue"
    " was kept, grey is eager."
)
SAME_BITS = 1e-9
"""Drawn for a build that gives the same bits: the axis of errors has no zero."""


def charts(result: ExportResult) -> dict[str, Chart]:
    """All that the numbers allow, by id."""
    found = [_batches(result), _accuracy(result)]
    return {chart.id: chart for chart in found if chart is not None}


def numbers(result: ExportResult) -> dict[str, int]:
    """Number of each build that was timed, by id: in the table's order."""
    timed = [item.id for item in result.candidates if item.latency is not None]
    return {name: at for at, name in enumerate(timed, 1)}


def _batches(result: ExportResult) -> Chart | None:
    items = [item for item in result.candidates if len(item.batches) > 1]
    if not items:
        return None
    best = max(items, key=lambda item: item.best_batch.samples_per_s if item.best_batch else 0)
    point = best.best_batch
    assert point is not None
    title = (
        f"Most samples per second: {best.title}, {units.rate(point.samples_per_s)} in batches of"
        f" {point.batch}"
    )
    note = (
        "Median time of a call. Each line ends where a doubled batch brought less than 5 % more"
        f" samples per second. Both axes are logarithmic. {MARKS}"
    )
    own = numbers(result)
    ends = [(math.log2(item.batches[-1].batch), item.batches[-1].ms) for item in items]
    labels = point_labels(ends, [own[item.id] for item in items])
    layout = {
        "xaxis": {
            "title": {"text": "batch"},
            "type": "log",
            "dtick": "L1",
            "tickvals": _sizes(items),
        },
        "yaxis": {"title": {"text": "time of a call (ms)"}, "type": "log"},
        "showlegend": False,
        "height": 420,
    }
    lines = [_batch_line(result, *pair) for pair in zip(items, labels, strict=True)]
    return Chart("batches", title, note, lines, layout)


def _sizes(items: list[ExportCandidate]) -> list[int]:
    return sorted({point.batch for item in items for point in item.batches})


def _batch_line(result: ExportResult, item: ExportCandidate, label: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": html.escape(item.title),
        "x": [point.batch for point in item.batches],
        "y": [point.ms for point in item.batches],
        "text": [*[""] * (len(item.batches) - 1), label],
        "textposition": "top left",
        "cliponaxis": False,
        "customdata": [units.rate(point.samples_per_s) for point in item.batches],
        "line": {"color": _colour(result, item), "dash": DASHES[item.precision], "width": 2},
        "marker": {"size": 6},
        "hovertemplate": "batch %{x}: %{y:.3g} ms<br>%{customdata}",
    }


def _accuracy(result: ExportResult) -> Chart | None:
    items = [
        item
        for item in result.candidates
        if item.latency is not None and item.speedup is not None and _error(item) is not None
    ]
    if len(items) < 2:
        return None
    fastest = max(items, key=lambda item: item.speedup or 0.0)
    title = f"Fastest of all that were verified: {fastest.title}, {words.faster(fastest)}"
    note = (
        "Error: the largest relative difference from eager float32 (relative L2) on real inputs;"
        f" {SAME_BITS:.0e} stands for the same bits. Right and low is best. {MARKS}"
    )
    own = numbers(result)
    points = [(item.speedup or 0.0, _error(item) or SAME_BITS) for item in items]
    labels = point_labels(points, [own[item.id] for item in items])
    most = max(x for x, _ in points) or 1.0
    traces = [
        _point(result, item, label, point[0] / most)
        for item, label, point in zip(items, labels, points, strict=True)
    ]
    layout = {
        "xaxis": {"title": {"text": "speed with batch 1 / eager (ratio)"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "error"}, "type": "log", "exponentformat": "power"},
        "showlegend": False,
        "height": 420,
    }
    return Chart("accuracy", title, note, traces, layout)


def _point(result: ExportResult, item: ExportCandidate, label: str, share: float) -> Trace:
    """share: how far to the right it lies."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": html.escape(item.title),
        "x": [item.speedup],
        "y": [_error(item)],
        "text": [label],
        "textposition": _position(share),
        "cliponaxis": False,
        "marker": {
            "color": _colour(result, item),
            "size": 11,
            "symbol": SYMBOLS[item.precision],
        },
        "hovertemplate": "%{x:.2f}×, error %{y:.1e}",
    }


def point_labels(points: list[tuple[float, float]], names: list[int]) -> list[str]:
    """What stands at each point; of those that lie together the highest has all, the others none.

    The second coordinates are drawn on a logarithmic axis.
    """
    most = max((x for x, _ in points), default=1.0) or 1.0
    heights = [math.log10(y) for _, y in points]
    span = max(heights, default=0.0) - min(heights, default=0.0) or 1.0
    places = [(x / most, height / span) for (x, _), height in zip(points, heights, strict=True)]
    groups: list[set[int]] = []
    for at, place in enumerate(places):
        near = [group for group in groups if any(_near(place, places[other]) for other in group)]
        groups = [group for group in groups if group not in near] + [{at}.union(*near)]
    labels = [""] * len(points)
    for group in groups:
        highest = max(sorted(group), key=lambda at: heights[at])
        labels[highest] = _listed(sorted(names[at] for at in group))
    return labels


def _position(share: float) -> str:
    if share < EDGE:
        return "top right"
    return "top left" if share > 1 - EDGE else "top center"


def _listed(numbers: list[int]) -> str:
    """1, 2, 3, 7 -> "1-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (
        [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run] for run in runs
    )
    return ", ".join(part for run in parts for part in run)


def _near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(abs(a - b) < limit for a, b, limit in zip(one, other, NEAR, strict=True))


def _error(item: ExportCandidate) -> float | None:
    if item.guard is None or item.guard.relative_error is None:
        return None
    return max(item.guard.relative_error, SAME_BITS)


def _colour(result: ExportResult, item: ExportCandidate) -> str:
    if item.state is BuildState.CHOSEN:
        return "@plan"
    return "@untouched" if item.id == "eager" else "@again"
