"""Pictures of an ExportResult: latency against batch, accuracy against speed; Plotly as plain JSON.

Colours are names ("@plan") that the page resolves, as in `charts`.
"""

from __future__ import annotations

import html

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
SAME_BITS = 1e-9
"""Drawn for a build that gives the same bits: the axis of errors has no zero."""


def charts(result: ExportResult) -> dict[str, Chart]:
    """All that the numbers allow, by id."""
    found = [_batches(result), _accuracy(result)]
    return {chart.id: chart for chart in found if chart is not None}


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
        " samples per second. Both axes are logarithmic."
    )
    layout = {
        "xaxis": {
            "title": {"text": "batch"},
            "type": "log",
            "dtick": "L1",
            "tickvals": _sizes(items),
        },
        "yaxis": {"title": {"text": "time of a call (ms)"}, "type": "log"},
        "showlegend": True,
        "height": 420,
    }
    return Chart("batches", title, note, [_batch_line(result, item) for item in items], layout)


def _sizes(items: list[ExportCandidate]) -> list[int]:
    return sorted({point.batch for item in items for point in item.batches})


def _batch_line(result: ExportResult, item: ExportCandidate) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": html.escape(item.title),
        "x": [point.batch for point in item.batches],
        "y": [point.ms for point in item.batches],
        "text": [units.rate(point.samples_per_s) for point in item.batches],
        "line": {"color": _colour(result, item), "dash": DASHES[item.precision], "width": 2},
        "marker": {"size": 6},
        "hovertemplate": "batch %{x}: %{y:.3g} ms<br>%{text}",
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
        f" {SAME_BITS:.0e} stands for the same bits. Right and low is best."
    )
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": html.escape(item.title),
            "x": [item.speedup],
            "y": [_error(item)],
            "text": [html.escape(item.title)],
            "textposition": "top center",
            "cliponaxis": False,
            "marker": {
                "color": _colour(result, item),
                "size": 11,
                "symbol": SYMBOLS[item.precision],
            },
            "hovertemplate": "%{x:.2f}×, error %{y:.1e}",
        }
        for item in items
    ]
    layout = {
        "xaxis": {"title": {"text": "speed with batch 1 / eager (ratio)"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "error"}, "type": "log", "exponentformat": "power"},
        "showlegend": False,
        "height": 420,
    }
    return Chart("accuracy", title, note, traces, layout)


def _error(item: ExportCandidate) -> float | None:
    if item.guard is None or item.guard.relative_error is None:
        return None
    return max(item.guard.relative_error, SAME_BITS)


def _colour(result: ExportResult, item: ExportCandidate) -> str:
    if item.state is BuildState.CHOSEN:
        return "@plan"
    return "@untouched" if item.id == "eager" else "@again"
