"""The report of an export: one self-contained HTML file beside the artefact.

Its pictures show latency against batch and accuracy against speed. Builds have numbers, which
the page explains once: a dozen names would not fit beside the points.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from flatout.nouns import units
from flatout.nouns.exported import BuildPrecision, BuildState, ExportCandidate, ExportResult
from flatout.reporting import html, plain
from flatout.reporting.chart import Axis, Chart, Curve, CurveChart, curve_charts
from flatout.reporting.export import words

DASHES: dict[BuildPrecision, tuple[int, ...]] = {
    BuildPrecision.EXACT: (),
    BuildPrecision.ROUNDING: (8, 6),
    BuildPrecision.QUANTISED: (2, 4),
}
SHAPES: dict[BuildPrecision, Literal["circle", "diamond", "square"]] = {
    BuildPrecision.EXACT: "circle",
    BuildPrecision.ROUNDING: "diamond",
    BuildPrecision.QUANTISED: "square",
}
NEAR = (0.08, 0.06)
"""Two points within these shares of the axes get one label."""
MARKS = (
    "Solid or round: float32; dashed or diamond: rounded inside; dotted or square: quantised. Blue"
    " was kept, grey is eager."
)
SAME_BITS = 1e-9
"""The error that is drawn for a build with the same bits: the axis has no zero."""


def write(result: ExportResult) -> None:
    """Write the page beside the build that was kept, else into the run's folder. Raises OSError."""
    write_report(result, (result.artefact or result.run_folder) / "report.html")


def write_report(result: ExportResult, path: Path) -> None:
    """Write the page, whole or not at all. Raises OSError if that fails."""
    html.write_page(render(result), path)


def render(result: ExportResult) -> str:
    """The page as text."""
    charts = drawn_charts(result)
    return html.page(
        "export.html.j2",
        curve_charts(charts),
        title=words.headline(result),
        result=result,
        winner=result.winner,
        guard_words=words.guard(result.winner.guard) if result.winner else "",
        tensors=_tensors(result),
        rows=[_row(item) for item in result.candidates],
        facts=_facts(result),
        charts=charts,
        numbered=[item.title for item in result.candidates if item.latency is not None],
    )


def _tensors(result: ExportResult) -> list[tuple[str, str, str, str]]:
    return [
        (kind, plain.one_line(item.name), words.shape(item.shape), item.dtype)
        for kind, items in (("input", result.inputs), ("output", result.outputs))
        for item in items
    ]


def _row(item: ExportCandidate) -> dict[str, Any]:
    latency, best = item.latency, item.best_batch
    return {
        "title": item.title,
        "state": words.STATES[item.state],
        "kind": {"chosen": "kept", "verified": "measured"}.get(item.state.value, item.state.value),
        "precision": words.PRECISIONS[item.precision],
        "p50": units.milliseconds(latency.p50_ms) if latency else "",
        "p90": units.milliseconds(latency.p90_ms) if latency else "",
        "p99": units.milliseconds(latency.p99_ms) if latency and latency.p99_ms else "",
        "speedup": html.times(item.speedup) if item.speedup is not None else "",
        "interval": units.ratios(item.speedup_interval) if item.speedup_interval else "",
        "most": f"{best.samples_per_s:,.0f} with {best.batch}" if best else "",
        "load": units.duration(item.load_s) if item.load_s is not None else "",
        "first": units.milliseconds(item.first_call_ms) if item.first_call_ms is not None else "",
        "build": units.duration(item.build_s) if item.build_s is not None else "",
        "peak": units.size(item.peak_bytes) if item.peak_bytes is not None else "",
        "size": units.size(item.size_bytes) if item.size_bytes is not None else "",
        "reason": plain.one_line(item.reason),
        "install": item.install,
        "guard": words.guard(item.guard),
    }


def _facts(result: ExportResult) -> list[tuple[str, str]]:
    metric = result.metric or {}
    reported = words.metric(metric) if metric.get("value") is not None else ""
    facts = [
        ("Model", f"{result.model}, {result.parameters:,} parameters"),
        ("Weights", result.weights),
        ("Inputs from", result.source),
        ("The script reports", reported),
        ("Batch sizes seen", ", ".join(map(str, result.batch_sizes))),
        ("Kept for", words.GOALS[result.goal]),
        *((name.capitalize(), str(value)) for name, value in result.machine.items()),
        ("Export took", units.duration(result.wall_s)),
    ]
    return [(name, plain.one_line(value)) for name, value in facts if value]


def drawn_charts(result: ExportResult) -> dict[str, Chart]:
    """All charts that the numbers allow, by id."""
    found = [_batches(result), _accuracy(result)]
    return {chart.id: chart for chart in found if chart is not None}


def numbers(result: ExportResult) -> dict[str, int]:
    """The number of each build that was timed, by id, in the table's order."""
    timed = [item.id for item in result.candidates if item.latency is not None]
    return {name: at for at, name in enumerate(timed, 1)}


def _batches(result: ExportResult) -> CurveChart | None:
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
    sizes = sorted({point.batch for item in items for point in item.batches})
    batch, time = Axis("batch", log=True, ticks=sizes), Axis("time of a call", "ms", log=True)
    curves = [_batch_curve(result, *pair) for pair in zip(items, labels, strict=True)]
    return CurveChart("batches", title, note, batch, time, curves, legend=False)


def _batch_curve(result: ExportResult, item: ExportCandidate, label: str) -> Curve:
    return Curve(
        item.title,
        [point.batch for point in item.batches],
        [point.ms for point in item.batches],
        _colour(result, item),
        dash=DASHES[item.precision],
        point=6,
        texts=[units.rate(point.samples_per_s) for point in item.batches],
        labels=[*[""] * (len(item.batches) - 1), label],
    )


def _accuracy(result: ExportResult) -> CurveChart | None:
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
    curves = [
        Curve(
            item.title,
            [speedup],
            [error],
            _colour(result, item),
            width=0,
            point=11,
            shape=SHAPES[item.precision],
            labels=[label],
        )
        for item, label, (speedup, error) in zip(items, labels, points, strict=True)
    ]
    speed, errors = Axis("speed with batch 1 / eager", "×", zero=True), Axis("error", log=True)
    return CurveChart("accuracy", title, note, speed, errors, curves, legend=False)


def point_labels(points: list[tuple[float, float]], names: list[int]) -> list[str]:
    """The label of each point; the highest of points close together has the label of all of them.

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
        return "plan"
    return "untouched" if item.id == "eager" else "again"
