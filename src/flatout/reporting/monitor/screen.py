"""One frame as lines of text: fits any width and height, with or without colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.reporting import plain
from flatout.reporting.monitor import words
from flatout.reporting.monitor.curves import Curves

T = TypeVar("T")
GAP = "  "
STATE_STYLES = {"stalled": "bold red", "training": "green", "tuning": "cyan", "ended": "dim"}
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
SORTS: dict[str, Callable[[JobSample], float]] = {
    "begin": lambda job: job.began_s or 0.0,
    "step time": lambda job: -(job.step_s or 0.0),
    "waiting": lambda job: -(job.wait_share or 0.0),
    "memory": lambda job: -(job.memory_bytes or 0.0),
}


@dataclass(frozen=True)
class Column:
    """One column of a table; the least important ones go first where there is no room."""

    heading: str
    cells: tuple[str, ...]
    importance: int
    left: bool = False
    least: int = 0
    """It may be cut down to so many letters; 0: not at all."""


def lines(
    frame: Frame | None,
    width: int,
    height: int,
    curves: Curves,
    sort: str = "begin",
    footer: str = "",
) -> list[Text]:
    """At most `height` lines of at most `width` cells."""
    if frame is None:
        return [_line("flatout monitor: reading ...", width)][:height]
    body = [_title(frame, width)]
    for machine in frame.machines:
        body += _machine(machine, width, curves)
    body.append(Text())
    alerts = _alerts(frame, width)
    foot = [_line(footer, width, "dim")] if footer else []
    room = height - len(body) - len(foot)
    most = max(2, room - min(len(alerts), max(3, room // 2)))
    jobs = _jobs(frame, width, curves, sort)
    if len(jobs) > most:
        hidden = len(jobs) - most + 1
        jobs = [*jobs[: most - 1], _line(f"{GAP}and {hidden} more", width, "dim")]
    body += [*jobs, *alerts]
    return [*body[: max(0, height - len(foot))], *foot][:height]


def _title(frame: Frame, width: int) -> Text:
    return _line(
        f"flatout monitor  {words.clock(frame.time_s)}  {words.counts(frame)}", width, "bold"
    )


def _machine(machine: MachineSample, width: int, curves: Curves) -> list[Text]:
    shown = [_line(words.machine(machine), width)]
    if not machine.gpus:
        return shown
    gpus = machine.gpus
    spark = [
        words.curve(curves.of(f"{machine.hostname} GPU {gpu.index}", "utilization"), 20)
        for gpu in gpus
    ]
    columns = [
        _column("GPU", gpus, lambda gpu: str(gpu.index), 9),
        _column("name", gpus, lambda gpu: plain.one_line(gpu.name or "-"), 3, left=True, least=8),
        _column("busy", gpus, lambda gpu: words.share(gpu.utilization), 9),
        Column("last 20 s", tuple(spark), 2, left=True),
        _column("memory", gpus, _memory, 8),
        _column("temp", gpus, _temperature, 6),
        _column("power", gpus, words.power, 7),
        _column("clock", gpus, _clock, 5),
        _column("slowed by", gpus, words.slowed, 4, left=True, least=8),
    ]
    return [*shown, *_table(columns, width, len(gpus))]


def _memory(gpu: GpuSample) -> str:
    return f"{words.size(gpu.memory_used_bytes)}/{words.size(gpu.memory_bytes)}"


def _temperature(gpu: GpuSample) -> str:
    return words.UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"


def _clock(gpu: GpuSample) -> str:
    return words.UNKNOWN if gpu.clock_mhz is None else f"{gpu.clock_mhz:.0f} MHz"


def _jobs(frame: Frame, width: int, curves: Curves, sort: str) -> list[Text]:
    ended = [job for job in frame.jobs if job.state == "ended"]
    running = [job for job in frame.jobs if job.state != "ended"]
    jobs = [*sorted(running, key=SORTS[sort]), *ended]
    if not jobs:
        return [_line("No job runs. flatout run train.py starts one.", width)]
    several = len({machine.hostname for machine in frame.machines}) > 1
    columns = [
        _column("job", jobs, lambda job: plain.one_line(job.program), 9, left=True, least=24),
        _column("state", jobs, words.state, 8, left=True),
        _column("step", jobs, words.steps, 7),
        _column("time", jobs, lambda job: words.milliseconds(job.step_s), 9),
        _column("samples/s", jobs, lambda job: words.number(job.samples_per_s), 6),
        _column("wait", jobs, lambda job: words.share(job.wait_share), 8),
        _column("loss", jobs, lambda job: words.number(job.loss), 8),
        _column("", jobs, lambda job: words.curve(curves.of(job.id, "loss"), 12), 1, left=True),
        _column("memory", jobs, lambda job: words.size(job.memory_bytes), 6),
        _column("GPUs", jobs, lambda job: words.gpus(job.gpus), 5),
        _column("GPU mem", jobs, lambda job: words.size(job.gpu_memory_bytes), 4),
        _column("cores", jobs, lambda job: words.number(_rounded(job.cpu_cores)), 3),
        _column("left", jobs, lambda job: words.left(job.left_s), 5),
    ]
    if several:
        columns.insert(0, _column("host", jobs, lambda job: job.hostname, 8, left=True, least=6))
    styles = [STATE_STYLES.get(job.state, "") for job in jobs]
    return _table(columns, width, len(jobs), styles)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _alerts(frame: Frame, width: int) -> list[Text]:
    """Each alert in a line; the worst with its evidence and its cure."""
    shown: list[Text] = []
    firing = [alert for alert in frame.alerts if alert.state == "firing"]
    others = [alert for alert in frame.alerts if alert.state == "resolved"]
    for number, alert in enumerate([*firing, *others[:3]]):
        style = SEVERITY_STYLES.get(alert.severity, "") if alert.state == "firing" else "dim"
        shown.append(_line(plain.one_line(words.alert(alert)), width, style))
        if number < 2 and alert.state == "firing":
            shown += _details(alert, width)
    shown += [_line(plain.one_line(note), width, "yellow") for note in frame.notes]
    return [Text(), *shown] if shown else []


def _details(alert: Alert, width: int) -> list[Text]:
    boost = f" Boost: {alert.boost}." if alert.boost else ""
    rows = [alert.evidence, f"{alert.cure.text}{boost}", *(f"$ {c}" for c in alert.cure.commands)]
    return [_line(f"{GAP}{plain.one_line(row)}", width) for row in rows]


def _column(
    heading: str,
    items: Sequence[T],
    cell: Callable[[T], str],
    importance: int,
    left: bool = False,
    least: int = 0,
) -> Column:
    return Column(heading, tuple(map(cell, items)), importance, left, least)


def _table(
    columns: Sequence[Column], width: int, rows: int, styles: Sequence[str] = ()
) -> list[Text]:
    """Headings and rows; columns are left out by importance until they fit."""
    kept = [column for column in columns if any(cell.strip(" -") for cell in column.cells)]
    while len(kept) > 1 and _least_width(kept) > width:
        kept.remove(min(kept, key=lambda column: column.importance))
    spare = width - _least_width(kept)
    widths = []
    for column in kept:
        wanted = _wanted(column)
        given = min(wanted, column.least + max(0, spare)) if column.least else wanted
        spare -= given - min(wanted, column.least or wanted)
        widths.append(given)
    heads = GAP.join(_cell(c.heading, w, c.left) for c, w in zip(kept, widths, strict=True))
    shown = [_line(heads, width, "dim")]
    for row in range(rows):
        cells = (_cell(c.cells[row], w, c.left) for c, w in zip(kept, widths, strict=True))
        style = styles[row] if row < len(styles) else ""
        shown.append(_line(GAP.join(cells), width, style))
    return shown


def _wanted(column: Column) -> int:
    return max(cell_len(column.heading), *(cell_len(cell) for cell in column.cells))


def _least_width(columns: Sequence[Column]) -> int:
    widths = [min(_wanted(c), c.least) if c.least else _wanted(c) for c in columns]
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _cell(text: str, width: int, left: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return text + " " * (width - length) if left else " " * (width - length) + text


def _line(text: str, width: int, style: str = "") -> Text:
    cut = text.rstrip()
    if cell_len(cut) > width:
        cut = _cell(cut, width, left=True)
    return Text(cut, style=style, no_wrap=True, end="")
