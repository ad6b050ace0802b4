"""The report of an export: one self-contained HTML file beside the artefact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.nouns import units
from flatout.nouns.exported import ExportCandidate, ExportResult
from flatout.reporting import html, plain
from flatout.reporting.chart import curve_charts
from flatout.reporting.export import figures, words


def write(result: ExportResult) -> None:
    """Write the page beside the build that was kept, else into the run's folder. Raises OSError."""
    write_report(result, (result.artefact or result.run_folder) / "report.html")


def write_report(result: ExportResult, path: Path) -> None:
    """Write the page, whole or not at all. Raises OSError if that fails."""
    html.write_page(render(result), path)


def render(result: ExportResult) -> str:
    """The page as text."""
    charts = figures.charts(result)
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
