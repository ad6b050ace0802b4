"""One job: its curves, ranks and alerts, and the stacks of its ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.units import count
from flatout.reporting import plain
from flatout.reporting.monitor import alert_lines, words
from flatout.reporting.monitor.app.live_table import LiveTable
from flatout.reporting.monitor.columns import of_ranks
from flatout.reporting.monitor.curves import Curves
from flatout.reporting.monitor.fitting import GAP, padded

Stacks = Callable[[str], str]
TALL = 32
"""From this height on, the curves have more rows."""
LEAST_BESIDE = 24
"""Curves are side by side if each has at least this many cells."""
FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("loss", "loss", words.number),
    ("step", "step time", words.milliseconds),
    ("wait", "wait for data", words.share),
)
ELSEWHERE = "Stacks can be asked for only where the job runs: flatout monitor there."
GONE = "This job is no longer shown: it ended a while ago."
FOREIGN = "Its steps are not known: flatout run has not started it."


class JobScreen(Screen[None]):
    """Everything about one job; Escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("t", "stacks", "Stacks of its ranks"),
    ]

    def __init__(self, job_id: str, curves: Curves, stacks: Stacks | None) -> None:
        super().__init__()
        self._job_id, self._curves, self._stacks = job_id, curves, stacks
        self._frame: Frame | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static(id="head", markup=False)
            yield Static(id="details", markup=False)
            yield Static(id="curves", markup=False)
            yield LiveTable(id="ranks")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        if self._frame is not None:
            self.show(self._frame)

    def on_resize(self) -> None:
        if self._frame is not None:
            self.call_after_refresh(self.show, self._frame)

    def show(self, frame: Frame) -> None:
        """The job as it is in this frame."""
        self._frame = frame
        if not self.is_mounted:
            return
        job = next((job for job in frame.jobs if job.id == self._job_id), None)
        if job is None:
            self.query_one("#head", Static).update(Text(GONE))
            return
        width = self.app.size.width - GAP
        self.query_one("#head", Static).update(_head(job))
        alerts = [alert for alert in frame.alerts if alert.job == job.id]
        alone = replace(frame, jobs=(job,))
        told = Text("\n").join(alert_lines.whole(alerts, alone, width))
        told.rstrip()
        self._put("#details", told)
        self._put("#curves", self._plots(width))
        ranks = self.query_one("#ranks", LiveTable)
        ranks.show(of_ranks(), job.ranks, [str(rank.pid) for rank in job.ranks])
        ranks.display = bool(job.ranks)

    def _put(self, part: str, text: Text) -> None:
        shown = self.query_one(part, Static)
        shown.display = bool(text)
        shown.update(text)

    def action_stacks(self) -> None:
        self.app.push_screen(StacksScreen(self._job_id, self._stacks))

    def _plots(self, width: int) -> Text:
        """The curves that have values, side by side if there is room."""
        every = ((name, said, self._curves.of(self._job_id, key)) for key, name, said in FIGURES)
        known = [each for each in every if sum(value is not None for value in each[2]) > 1]
        if not known:
            return Text()
        beside = (width + GAP) // len(known) - GAP
        rows = 6 if self.app.size.height >= TALL else 3
        if beside < LEAST_BESIDE:
            return Text("\n").join(line for each in known for line in _plot(*each, width, rows))
        plots = (_plot(*each, beside, rows) for each in known)
        lines = (Text(" " * GAP).join(parts) for parts in zip(*plots, strict=True))
        return Text("\n").join(lines)


class StacksScreen(Screen[None]):
    """The stacks of a job's ranks, fetched once."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "app.pop_screen", "Back")]

    def __init__(self, job_id: str, stacks: Stacks | None) -> None:
        super().__init__()
        self._job_id, self._stacks = job_id, stacks

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static("asking the ranks ...", id="stacks", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.run_worker(self._ask, thread=True, exit_on_error=False)

    def _ask(self) -> None:
        try:
            text = ELSEWHERE if self._stacks is None else self._stacks(self._job_id)
        except Exception as error:
            text = f"The stacks could not be read: {type(error).__name__}: {error}"
        lines = "\n".join(plain.one_line(line) for line in text.splitlines())
        self.app.call_from_thread(self.query_one("#stacks", Static).update, Text(lines))


def _plot(
    name: str, said: Callable[[float | None], str], values: Sequence[float | None], *size: int
) -> list[Text]:
    """A curve under its name, last value and range; size: cells and rows."""
    width, rows = size
    known = [value for value in values if value is not None]
    finite = [value for value in known if math.isfinite(value)]
    span = f"{said(min(finite))} to {said(max(finite))}" if finite else ""
    return [
        Text(padded(f"{name}  {said(known[-1])}", width, left=True), style="bold"),
        Text(padded(span, width, left=True), style="dim"),
        *(Text(row, style="green") for row in words.plot(values, width, rows)),
    ]


def _head(job: JobSample) -> Text:
    """What it is, its progress, and where its files are."""
    rows = [
        ("user", job.user),
        ("host", f"{job.hostname}, process {job.pid}"),
        ("folder", job.folder),
        ("run", job.run_folder),
        ("boosts", ", ".join(job.boosts)),
    ]
    text = Text().append(plain.one_line(job.program) + "\n", style="bold")
    text.append("  ".join(_figures(job)) + "\n")
    for name, value in rows:
        if value:
            text.append(f"{name:8}", style="dim").append(plain.one_line(value) + "\n")
    if job.state == "foreign":
        text.append(FOREIGN + "\n", style="dim")
    text.rstrip()
    return text


def _figures(job: JobSample) -> list[str]:
    """State, steps and time left; for a job without ranks, what it uses."""
    parts = [words.state(job)]
    if job.ended_s is not None:
        parts[0] += f" at {words.clock(job.ended_s)}"
    if job.step is not None:
        parts.append(f"step {words.steps(job)}")
    if job.step_s is not None:
        parts.append(f"{words.milliseconds(job.step_s)} a step")
    if job.samples_per_s is not None:
        parts.append(f"{words.number(job.samples_per_s)} samples/s")
    if job.left_s is not None:
        parts.append(f"{words.left(job.left_s)} left")
    lost = sum(rank.steps_lost or 0 for rank in job.ranks)
    if lost:
        parts.append(f"{count(lost, 'step')} not seen")
    if job.cpu_cores is not None and not job.ranks:
        parts.append(f"{words.cores(job.cpu_cores)} cores")
    if job.memory_bytes is not None and not job.ranks:
        parts.append(f"{words.size(job.memory_bytes)} memory")
    if job.gpus and not job.ranks:
        parts.append(f"GPU {words.gpus(job.gpus)}: {words.size(job.gpu_memory_bytes)}")
    return parts
