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
from flatout.reporting.monitor import alert_lines, words
from flatout.reporting.monitor.app.alerts_screen import AlertsPart, AlertsScreen
from flatout.reporting.monitor.app.job_screen import JobScreen, Stacks
from flatout.reporting.monitor.app.live_table import LiveTable
from flatout.reporting.monitor.columns import (
    SORTED_BY,
    SORTS,
    of_gpus,
    of_jobs,
    of_processes,
    ordered,
)
from flatout.reporting.monitor.curves import Curves
from flatout.reporting.monitor.feed import FrameFeed
from flatout.reporting.monitor.screen import NO_JOB, STATE_STYLES, machine_lines

TICK_S = 0.1
HELP = """\
Up, Down    choose a job           Enter   open it: alerts, curves, ranks, stacks
s           sort the jobs          /       show only what contains a text; Escape ends that
p           processes              a       all alerts, each with its cure
Tab         go to the next part    Space   pause
                                   q       quit; in a job: back

A click chooses a job, the next one opens it; a click on a heading sorts. Jobs that ended in the
last ten minutes stand below the others. flatout explain CODE tells more of an alert.

time        median step of the last 10 s
wait        the share of it spent waiting for the data loader
left        time to the end, where an earlier run of the program tells the number of steps
last 20 s   how busy the GPU was, from 0 to 100%
loss curve  the last 12 s, between its least and its largest value
-           not known
The curves of a job show what was seen since the monitor began, at most 900 frames."""
GPUS_SHARE = 0.4
"""The most of the height that the GPUs get, as in the style sheet."""
HOME_ONLY = ("sort", "filter", "processes", "alerts", "help")
"""Actions without meaning while a job is open."""


def show(frames: Iterator[Frame], stacks: Stacks | None = None) -> None:
    """Run the application until q or Ctrl-C. stacks: the stacks of a job's ranks, by its id.

    An error of the source of frames is raised once the terminal is restored.
    """
    app = MonitorApp(FrameFeed(frames), stacks)
    app.run()
    app.feed.check()


class MonitorApp(App[None]):
    """Draws the newest frame."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    * {
        scrollbar-size-vertical: 1;
        scrollbar-background: ansi_default; scrollbar-color: ansi_bright_black;
        scrollbar-background-hover: ansi_default; scrollbar-color-hover: ansi_bright_black;
        scrollbar-background-active: ansi_default; scrollbar-color-active: ansi_bright_black;
    }
    #machine, #head, #details, #stacks { height: auto; }
    #details { margin-top: 1; }
    LiveTable { overflow-x: hidden; background: ansi_default; }
    LiveTable > .datatable--header {
        background: ansi_default; color: ansi_default; text-style: underline;
    }
    LiveTable > .datatable--cursor, LiveTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: none;
    }
    LiveTable:focus > .datatable--cursor { text-style: reverse; }
    #gpus { height: auto; max-height: 40%; }
    #jobs { height: auto; }
    #processes { height: auto; max-height: 40%; margin-top: 1; }
    #curves { height: auto; margin-top: 1; }
    #ranks { height: auto; max-height: 12; }
    #alerts { height: 1fr; margin-top: 1; }
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
        Binding("a", "alerts", "Alerts"),
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
        yield Static(id="none", markup=False)
        yield LiveTable(id="jobs")
        yield LiveTable(id="processes")
        yield AlertsPart(id="alerts", markup=False)
        yield Input(placeholder="program, user, host or state", id="filter", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        for name in ("#gpus", "#none", "#jobs", "#processes", "#filter"):
            self.query_one(name).display = False
        self.set_interval(TICK_S, self.take)

    def take(self) -> None:
        """Draw the newest frame; curves continue during a pause."""
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
        head = self._head(frame)
        home.query_one("#machine", Static).update(head)
        self._draw_gpus(home, frame)
        self._share_room(home, frame, head.plain.count("\n") + 1)
        self._draw_jobs(home, frame)
        self._draw_processes(home, frame)
        if isinstance(self.screen, (JobScreen, AlertsScreen)):
            self.screen.show(frame)
        home.query_one("#alerts", AlertsPart).show(frame)

    def _head(self, frame: Frame) -> Text:
        notes = [f"sorted by {self._sort}"] if self._sort != next(iter(SORTS)) else []
        notes += [f"only {self._wanted!r}"] if self._wanted else []
        notes += ["paused"] if self._paused else []
        notes += ["the last frame"] if self._over else []
        title = f"flatout monitor  {words.clock(frame.time_s)}  {words.counts(frame)}"
        text = Text().append(title, style="bold")
        if notes:
            text.append(f"  ({', '.join(notes)})", style="yellow")
        for machine in frame.machines:
            for line in machine_lines(machine, self.size.width, self._curves):
                text.append("\n" + line)
        return text

    def _draw_gpus(self, home: Screen[None], frame: Frame) -> None:
        pairs = [(machine, gpu) for machine in frame.machines for gpu in machine.gpus]
        table = home.query_one("#gpus", LiveTable)
        table.display = bool(pairs)
        hosts = {id(gpu): machine.hostname for machine, gpu in pairs}
        columns = of_gpus(lambda gpu: hosts[id(gpu)], self._curves, len(frame.machines) > 1)
        keys = [f"{machine.hostname} {gpu.index}" for machine, gpu in pairs]
        table.show(columns, [gpu for _, gpu in pairs], keys)

    def _share_room(self, home: Screen[None], frame: Frame, head: int) -> None:
        """Let the jobs leave room for the alerts: as much as they need, at most half of it."""
        gpus = sum(len(machine.gpus) for machine in frame.machines)
        above = head + (min(gpus + 1, int(self.size.height * GPUS_SHARE)) if gpus else 0)
        room = self.size.height - above - 1
        wanted = len(alert_lines.lines(frame, self.size.width, self.size.height))
        most = max(3, room - min(wanted + 1, room // 2))
        home.query_one("#jobs", LiveTable).styles.max_height = most

    def _draw_jobs(self, home: Screen[None], frame: Frame) -> None:
        jobs = [job for job in ordered(frame.jobs, self._sort) if self._matches(job)]
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
        nothing.update(Text(f"No job contains {self._wanted!r}." if frame.jobs else NO_JOB))

    def _draw_processes(self, home: Screen[None], frame: Frame) -> None:
        pairs = [
            (machine.hostname, process)
            for machine in frame.machines
            for process in machine.processes
            if self._matches(process)
        ]
        pairs.sort(
            key=lambda pair: (-(pair[1].gpu_memory_bytes or 0), -(pair[1].memory_bytes or 0))
        )
        hosts = {id(process): hostname for hostname, process in pairs}
        columns = of_processes(lambda process: hosts[id(process)], len(frame.machines) > 1)
        shown = [process for _, process in pairs]
        keys = [f"{process.pid} {hostname}" for hostname, process in pairs]
        home.query_one("#processes", LiveTable).show(columns, shown, keys)

    def _matches(self, item: JobSample | ProcessSample) -> bool:
        if isinstance(item, JobSample):
            texts = [item.program, item.user, item.hostname, item.folder, words.state(item)]
        else:
            texts = [item.command, item.user, str(item.pid)]
        return self._wanted.lower() in " ".join(text or "" for text in texts).lower()

    # Keys -------------------------------------------------------------------------------------

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = event.row_key.value
        if key is None or self._frame is None:
            return
        if event.data_table.id == "processes":
            key = _job_of(self._frame, *key.split(" ", 1))
        if event.data_table.id in ("jobs", "processes") and key is not None:
            screen = JobScreen(key, self._curves, self._stacks)
            screen.show(self._frame)
            self.push_screen(screen)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if event.data_table.id == "jobs":
            self._sort = SORTED_BY.get(event.column_key.value or "", self._sort)
            self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """An open job has its own footer and keys."""
        return len(self.screen_stack) == 1 or action not in HOME_ONLY

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)  # the new size applies from then on

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
        self.screen_stack[0].query_one("#processes" if table.display else "#jobs").focus()
        self._draw()

    def action_alerts(self) -> None:
        screen = AlertsScreen()
        if self._frame is not None:
            screen.show(self._frame)
        self.push_screen(screen)

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


def _job_of(frame: Frame, pid: str, hostname: str) -> str | None:
    """The job that a process belongs to."""
    for job in frame.jobs:
        pids = {job.pid, *(rank.pid for rank in job.ranks)}
        if job.hostname == hostname and int(pid) in pids:
            return job.id
    return None


class HelpScreen(Screen[None]):
    """The keys, and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "app.pop_screen", "Back")
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(HELP, markup=False)
        yield Footer()
