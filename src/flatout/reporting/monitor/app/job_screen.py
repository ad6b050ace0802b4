"""One job: its curves, its ranks, its alerts; and the stacks of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.reporting import plain
from flatout.reporting.monitor import words
from flatout.reporting.monitor.app.alert_texts import detailed
from flatout.reporting.monitor.app.live_table import LiveTable
from flatout.reporting.monitor.columns import of_ranks
from flatout.reporting.monitor.curves import Curves

Stacks = Callable[[str], str]
ROWS = 4
FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("loss", "loss", words.number),
    ("step", "step time", words.milliseconds),
    ("wait", "wait for data", words.share),
)
ELSEWHERE = "Stacks can be asked for only where the job runs: flatout monitor there."
GONE = "This job is no longer shown: it ended a while ago."


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
        with VerticalScroll():
            yield Static(id="head", markup=False)
            yield Static(id="curves", markup=False)
            yield LiveTable(id="ranks")
            yield Static(id="details", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#ranks").focus()
        if self._frame is not None:
            self.show(self._frame)

    def on_resize(self) -> None:
        if self._frame is not None:
            self.show(self._frame)

    def show(self, frame: Frame) -> None:
        """The job as it is in this frame."""
        self._frame = frame
        if not self.is_mounted:
            return
        job = next((job for job in frame.jobs if job.id == self._job_id), None)
        if job is None:
            self.query_one("#head", Static).update(Text(GONE))
            return
        self.query_one("#head", Static).update(_head(job))
        self.query_one("#curves", Static).update(self._plots(self.size.width - 4))
        ranks = self.query_one("#ranks", LiveTable)
        ranks.show(of_ranks(), job.ranks, [str(rank.pid) for rank in job.ranks])
        ranks.display = bool(job.ranks)
        alerts = [alert for alert in frame.alerts if alert.job == job.id]
        self.query_one("#details", Static).update(detailed(alerts))

    def action_stacks(self) -> None:
        self.app.push_screen(StacksScreen(self._job_id, self._stacks))

    def _plots(self, width: int) -> Text:
        """The curves that have values, each under its name and range."""
        text = Text()
        for figure, name, said in FIGURES:
            values = self._curves.of(self._job_id, figure)[-max(10, width) :]
            known = [value for value in values if value is not None]
            if len(known) < 2:
                continue
            text.append(f"{name}  {said(known[-1])}", style="bold")
            text.append(f"  between {said(min(known))} and {said(max(known))}\n", style="dim")
            text.append("\n".join(words.plot(values, max(10, width), ROWS)) + "\n\n", style="green")
        return text


class StacksScreen(Screen[None]):
    """The stacks of a job's ranks, asked for once."""

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


def _head(job: JobSample) -> Text:
    """What it is, how far it is, and where its files are."""
    parts = [words.state(job), f"step {words.steps(job)}"]
    if job.step_s is not None:
        parts.append(f"{words.milliseconds(job.step_s)} a step")
    if job.samples_per_s is not None:
        parts.append(f"{words.number(job.samples_per_s)} samples/s")
    if job.left_s is not None:
        parts.append(f"{words.left(job.left_s)} left")
    rows = [
        ("host", f"{job.hostname}, process {job.pid}"),
        ("folder", job.folder),
        ("run", job.run_folder),
        ("boosts", ", ".join(job.boosts)),
    ]
    text = Text(plain.one_line(job.program) + "\n", style="bold")
    text.append("  ".join(parts) + "\n", style="none")
    for name, value in rows:
        if value:
            text.append(f"{name:8}", style="dim").append(plain.one_line(value) + "\n", "none")
    return text
