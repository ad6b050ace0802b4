"""The application: machine, GPUs, jobs, processes and alerts; keys to sort, filter and open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import ProcessSample
from flatout.reporting.monitor import words
from flatout.reporting.monitor.app.alert_texts import detailed
from flatout.reporting.monitor.app.job_screen import JobScreen, Stacks
from flatout.reporting.monitor.app.live_table import LiveTable
from flatout.reporting.monitor.columns import SORTS, of_gpus, of_jobs, of_processes
from flatout.reporting.monitor.curves import Curves
from flatout.reporting.monitor.feed import FrameFeed

TICK_S = 0.1
STATE_STYLES = {"stalled": "bold red", "training": "green", "tuning": "cyan", "ended": "dim"}
NO_JOB = "No job runs. flatout run train.py starts one."
HELP = """\
Up, Down    choose a job           Enter   open it: curves, ranks, alerts, stacks
s           sort the jobs          /       show only what contains a text; Escape ends that
p           processes              Space   pause
Tab         go to the next table   q       quit

Alerts stand at the bottom, the worst first, each with its cure; flatout explain CODE tells more.
The columns: time is the median step of the last 10 s, wait the share of it spent waiting for the
data loader, left the time to the end where an earlier run of the program tells the steps."""


def show(frames: Iterator[Frame], stacks: Stacks | None = None) -> None:
    """Run the application until q or Ctrl-C. stacks: the stacks of a job's ranks, by its id.

    What the source of frames raises comes out when the terminal is as it was.
    """
    app = MonitorApp(FrameFeed(frames), stacks)
    app.run()
    app.feed.check()


class MonitorApp(App[None]):
    """Draws the newest frame that has come."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #machine, #head, #curves, #details, #alerts, #stacks { height: auto; }
    #gpus { height: auto; max-height: 40%; }
    #jobs { height: auto; max-height: 50%; }
    #processes { height: auto; max-height: 40%; margin-top: 1; }
    #ranks { height: auto; max-height: 12; }
    #alerts-part { height: 1fr; margin-top: 1; }
    #none { height: auto; }
    #filter { height: 1; border: none; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("p", "processes", "Processes"),
        Binding("space", "pause", "Pause"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("escape", "no_filter", show=False),
    ]

    def __init__(self, feed: FrameFeed, stacks: Stacks | None = None) -> None:
        super().__init__(ansi_color=True)
        self.feed = feed
        self._stacks = stacks
        self._curves = Curves()
        self._frame: Frame | None = None
        self._sort = next(iter(SORTS))
        self._wanted = ""
        self._paused = self._over = False

    def compose(self) -> ComposeResult:
        yield Static("flatout monitor: reading ...", id="machine", markup=False)
        yield LiveTable(id="gpus")
        yield Static(NO_JOB, id="none", markup=False)
        yield LiveTable(id="jobs")
        yield LiveTable(id="processes")
        with VerticalScroll(id="alerts-part"):
            yield Static(id="alerts", markup=False)
        yield Input(placeholder="program, user, host or state", id="filter", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        for name in ("#gpus", "#none", "#jobs", "#processes", "#filter"):
            self.query_one(name).display = False
        self.set_interval(TICK_S, self.take)

    def take(self) -> None:
        """Draw the newest frame; curves go on in a pause."""
        fresh = self.feed.taken()
        for frame in fresh:
            self._curves.add(frame)
        if self.feed.failed:
            self.exit()
        ends = self.feed.over and not self._over
        self._over = self.feed.over
        if fresh and not self._paused:
            self._frame = fresh[-1]
        if (fresh and not self._paused) or ends:
            self._draw()

    def _draw(self) -> None:
        frame = self._frame
        if frame is None:
            return
        home = self.screen_stack[0]
        home.query_one("#machine", Static).update(self._head(frame))
        self._draw_gpus(home, frame)
        self._draw_jobs(home, frame)
        self._draw_processes(home, frame)
        home.query_one("#alerts", Static).update(detailed(frame.alerts, frame.notes))
        if isinstance(self.screen, JobScreen):
            self.screen.show(frame)

    def _head(self, frame: Frame) -> Text:
        notes = [f"sorted by {self._sort}"] if self._sort != next(iter(SORTS)) else []
        notes += [f"only {self._wanted!r}"] if self._wanted else []
        notes += ["paused"] if self._paused else []
        notes += ["the last frame"] if self._over else []
        title = f"flatout monitor  {words.clock(frame.time_s)}  {words.counts(frame)}"
        text = Text(title, style="bold")
        if notes:
            text.append(f"  ({', '.join(notes)})", style="yellow")
        for machine in frame.machines:
            text.append("\n" + words.machine(machine), style="none")
        return text

    def _draw_gpus(self, home: Screen[None], frame: Frame) -> None:
        pairs = [(machine, gpu) for machine in frame.machines for gpu in machine.gpus]
        table = home.query_one("#gpus", LiveTable)
        table.display = bool(pairs)
        hosts = {id(gpu): machine.hostname for machine, gpu in pairs}
        columns = of_gpus(lambda gpu: hosts[id(gpu)], self._curves, len(frame.machines) > 1)
        keys = [f"{machine.hostname} {gpu.index}" for machine, gpu in pairs]
        table.show(columns, [gpu for _, gpu in pairs], keys)

    def _draw_jobs(self, home: Screen[None], frame: Frame) -> None:
        ended = [job for job in frame.jobs if job.state == "ended"]
        running = [job for job in frame.jobs if job.state != "ended"]
        every = [*sorted(running, key=SORTS[self._sort]), *ended]
        jobs = [job for job in every if self._matches(job)]
        several = len({machine.hostname for machine in frame.machines}) > 1
        table = home.query_one("#jobs", LiveTable)
        styles = [STATE_STYLES.get(job.state, "") for job in jobs]
        table.show(of_jobs(self._curves, several), jobs, [job.id for job in jobs], styles)
        if bool(jobs) != table.display:
            table.display = bool(jobs)
            if jobs and not isinstance(home.focused, Input):
                table.focus()
        nothing = home.query_one("#none", Static)
        nothing.display = not jobs
        nothing.update(Text(f"No job contains {self._wanted!r}." if every else NO_JOB))

    def _draw_processes(self, home: Screen[None], frame: Frame) -> None:
        every = [process for machine in frame.machines for process in machine.processes]
        shown = [process for process in every if self._matches(process)]
        keys = [f"{number} {process.pid}" for number, process in enumerate(shown)]
        home.query_one("#processes", LiveTable).show(of_processes(), shown, keys)

    def _matches(self, item: JobSample | ProcessSample) -> bool:
        if isinstance(item, JobSample):
            texts = [item.program, item.user, item.hostname, item.folder, words.state(item)]
        else:
            texts = [item.command, item.user, str(item.pid)]
        return self._wanted.lower() in " ".join(text or "" for text in texts).lower()

    # Keys -------------------------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "jobs" and event.row_key.value is not None:
            screen = JobScreen(event.row_key.value, self._curves, self._stacks)
            if self._frame is not None:
                screen.show(self._frame)
            self.push_screen(screen)

    def action_sort(self) -> None:
        sorts = list(SORTS)
        self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        self._draw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw()

    def action_processes(self) -> None:
        table = self.screen_stack[0].query_one("#processes", LiveTable)
        table.display = not table.display

    def action_filter(self) -> None:
        box = self.screen_stack[0].query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_no_filter(self) -> None:
        home = self.screen_stack[0]
        box = home.query_one("#filter", Input)
        box.value, self._wanted, box.display = "", "", False
        home.query_one("#jobs", LiveTable).focus()
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value.strip()
        self._draw()

    def on_input_submitted(self) -> None:
        home = self.screen_stack[0]
        home.query_one("#filter", Input).display = False
        home.query_one("#jobs", LiveTable).focus()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())


class HelpScreen(Screen[None]):
    """The keys, and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "app.pop_screen", "Back")
    ]

    def compose(self) -> ComposeResult:
        yield Static(HELP, markup=False)
        yield Footer()
