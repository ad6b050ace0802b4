"""What `flatout export` prints: the table of builds, the one that was kept, what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.exported import BuildState, ExportCandidate, ExportResult
from flatout.reporting import plain
from flatout.reporting.export import words
from flatout.reporting.moving_line import MovingLine
from flatout.reporting.paragraphs import Line, paragraph, show, styled, whole, width_of

if TYPE_CHECKING:
    from rich.console import Console

NAME, NUMBER, STATE = 26, 10, 10
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
    yield from paragraph("model", _model(result), width, "bold")
    for tensor in (*result.inputs, *result.outputs):
        arrow = "in" if tensor in result.inputs else "out"
        shown = f"{arrow} {tensor.name}: {words.shape(tensor.shape)} {tensor.dtype}"
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
            yield from _other(item, width)
    if any(item.state is BuildState.ABSENT for item in result.candidates):
        text = "flatout export --install puts what is absent beside your environment, not into it"
        yield from paragraph("note", text, width, "bold")
    for note in result.notes:
        yield from paragraph("note", note, width, "bold")
    yield from _verdict(result, width)


def _model(result: ExportResult) -> str:
    metric = result.metric or {}
    shown = f"; {words.metric(metric)}" if metric.get("value") is not None else ""
    return (
        f"{result.model}, {result.parameters:,} parameters, weights {result.weights},"
        f" inputs from {result.source}{shown}"
    )


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


def _other(item: ExportCandidate, width: int) -> Iterator[Line]:
    label = words.STATES[item.state]
    text = f"{item.title}: {item.reason}"
    yield from paragraph(label, plain.one_line(text), width, STYLES[item.state])
    if item.install:
        yield whole("", item.install, "")


def _verdict(result: ExportResult, width: int) -> Iterator[Line]:
    winner = result.winner
    if winner is None or result.artefact is None:
        yield from paragraph("verdict", words.headline(result), width, "bold red")
        return
    text = f"{words.headline(result)}; {result.why}; {words.guard(winner.guard)}"
    yield from paragraph("verdict", text, width, "bold green")
    yield whole("artefact", str(result.artefact), "bold")
    yield whole("next", f"{result.artefact}/load.py: model = load(); model(array)", "bold cyan")
