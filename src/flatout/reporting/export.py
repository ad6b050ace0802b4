"""What `flatout export` prints: the builds, the one that was kept, what to do next; its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout.nouns import units
from flatout.nouns.exported import (
    BuildState,
    ExportCandidate,
    ExportGuard,
    ExportResult,
    Goal,
)
from flatout.reporting import plain
from flatout.reporting.document import as_object
from flatout.reporting.moving_line import MovingLine
from flatout.reporting.paragraphs import Line, paragraph, show, styled, whole, width_of

if TYPE_CHECKING:
    from rich.console import Console

EXPORT = "flatout.export/1"
"""A field once published keeps its meaning."""
NAME, NUMBER = 26, 10
"""Widths of the columns."""
HEADS = ("p50", "p99", "x eager", "samples/s", "load", "memory", "size")
MEASURED = (BuildState.CHOSEN, BuildState.VERIFIED)
STYLES = {
    BuildState.CHOSEN: "bold green",
    BuildState.VERIFIED: "",
    BuildState.REFUSED: "red",
    BuildState.FAILED: "yellow",
    BuildState.ABSENT: "dim",
    BuildState.SKIPPED: "dim",
}
STATES = {
    BuildState.CHOSEN: "kept",
    BuildState.VERIFIED: "verified",
    BuildState.REFUSED: "refused",
    BuildState.FAILED: "failed",
    BuildState.ABSENT: "absent",
    BuildState.SKIPPED: "skipped",
}


class ExportView(MovingLine):
    """Shows each step of an export."""

    first = "looking at the capture"

    def step(self, text: str) -> None:
        """What is being done now."""
        if self._status is None:
            self._print(text)
        else:
            self._move(text)


def show_export(result: ExportResult, console: Console | None = None) -> None:
    """Print everything; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    for line in _lines(result, width_of(console), console.width):
        show(console, line)


def _lines(result: ExportResult, width: int, whole_width: int) -> Iterator[Line]:
    metric = result.metric or {}
    evaluated = ""
    if (value := metric.get("value")) is not None:  # by the script: "accuracy 0.9517"
        number = f"{value:.4g}" if isinstance(value, float) else f"{value}"
        evaluated = f"; {metric['name']} {number}"
    model = (
        f"{result.model}, {result.parameters:,} parameters, weights {result.weights},"
        f" inputs from {result.source}{evaluated}"
    )
    yield from paragraph("model", model, width, "bold")
    for tensor in (*result.inputs, *result.outputs):
        arrow = "in" if tensor in result.inputs else "out"
        shape = " x ".join("any" if size is None else f"{size}" for size in tensor.shape)
        shown = f"{arrow} {tensor.name}: {shape or 'a number'} {tensor.dtype}"
        yield Line(f"          {plain.one_line(shown)}")
    yield Line("")
    columns = max(1, (whole_width - NAME - 2) // NUMBER)
    heads = "".join(f"{head:>{NUMBER}}" for head in HEADS[:columns])
    yield styled(f"  {'':{NAME}}{heads}", "dim")
    for item in result.candidates:
        if item.state in MEASURED:
            yield styled(_row(item, columns), STYLES[item.state])
    yield Line("")
    for item in result.candidates:
        if item.state not in MEASURED:
            label = STATES[item.state]
            text = f"{item.title}: {item.reason}"
            yield from paragraph(label, plain.one_line(text), width, STYLES[item.state])
            if item.install:
                yield whole("", item.install, "")
    for note in result.notes:
        yield from paragraph("note", note, width, "bold")
    winner = result.winner
    if winner is None or result.artefact is None:
        yield from paragraph("verdict", _headline(result), width, "bold red")
        return
    text = f"{_headline(result)}; {result.why}; {_guard(winner.guard)}"
    yield from paragraph("verdict", text, width, "bold green")
    yield whole("artefact", str(result.artefact), "bold")
    yield whole("next", f"{result.artefact}/load.py: model = load(); model(array)", "bold cyan")


def _row(item: ExportCandidate, columns: int) -> str:
    latency, best = item.latency, item.best_batch
    p99 = latency.p99_ms if latency is not None else None
    cells = (
        units.milliseconds(latency.p50_ms) if latency is not None else "",
        units.milliseconds(p99) if p99 is not None else "",
        units.ratio(item.speedup) if item.speedup is not None else "",
        f"{best.samples_per_s:,.0f}" if best is not None else "",
        units.duration(item.load_s) if item.load_s is not None else "",
        units.size(item.peak_bytes) if item.peak_bytes is not None else "",
        units.size(item.size_bytes) if item.size_bytes is not None else "",
    )
    mark = "* " if item.state is BuildState.CHOSEN else "  "
    return (
        mark
        + f"{plain.cut(item.title, NAME):<{NAME}}"
        + "".join(f"{cell:>{NUMBER}}" for cell in cells[:columns])
    )


def _headline(result: ExportResult) -> str:
    """The answer in one line."""
    winner = result.winner
    if winner is None:
        return "No build could be verified"
    if winner.id == "eager":
        return "Nothing beats eager PyTorch here"
    if result.goal is Goal.SIZE:
        return f"{winner.title}: {units.size(winner.size_bytes)}"
    if winner.speedup is None:
        return f"{winner.title}: not timed beside eager"
    low_high = ""
    if winner.speedup_interval is not None:
        low_high = f" ({units.ratios(winner.speedup_interval)})"
    return f"{winner.title}: {units.ratio(winner.speedup)} eager{low_high}"


def _guard(found: ExportGuard | None) -> str:
    """The result of the comparison with eager float32."""
    if found is None:
        return ""
    parts = []
    if found.relative_error is not None:
        allowed = f", {found.limit:.0e} allowed" if found.limit is not None else ""
        parts.append(f"error {found.relative_error:.1e}{allowed}")
    if found.top1 is not None:
        parts.append(f"same class in {units.share(found.top1)}")
    if found.metric and found.value is not None:
        text = f"{found.metric} {found.value:.4f}"
        if found.reference is not None:
            text += f" against {found.reference:.4f}"
        if found.lower is not None:
            text += f", at least {100 * found.lower:.1f} % of it"
        parts.append(text)
    parts.append(units.count(found.samples, "sample"))
    return "; ".join(parts)


def export_document(result: ExportResult) -> dict[str, Any]:
    """What `flatout export --json` prints; values that were not measured are null."""
    candidates = []
    for item in result.candidates:
        best = item.best_batch
        candidates.append(
            {
                **dataclasses.asdict(item),
                "precision": item.precision.value,
                "state": item.state.value,
                "best_batch": dataclasses.asdict(best) if best is not None else None,
            }
        )
    return as_object(
        {
            "schema": EXPORT,
            "model": result.model,
            "parameters": result.parameters,
            "source": result.source,
            "weights": result.weights,
            "metric": result.metric,
            "inputs": [dataclasses.asdict(item) for item in result.inputs],
            "outputs": [dataclasses.asdict(item) for item in result.outputs],
            "batch_sizes": list(result.batch_sizes),
            "goal": result.goal.value,
            "chosen": result.chosen,
            "why": result.why,
            "artefact": str(result.artefact) if result.artefact is not None else None,
            "candidates": candidates,
            "notes": list(result.notes),
            "machine": result.machine,
            "run_folder": str(result.run_folder),
            "wall_s": result.wall_s,
        }
    )
