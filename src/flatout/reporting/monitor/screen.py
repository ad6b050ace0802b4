"""One frame as lines of text: fits any width and height, with or without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.machine_sample import MachineSample
from flatout.reporting import plain
from flatout.reporting.monitor import words
from flatout.reporting.monitor.columns import SORTS, TableColumn, of_gpus, of_jobs
from flatout.reporting.monitor.curves import Curves

T = TypeVar("T")
GAP = "  "
STATE_STYLES = {"stalled": "bold red", "training": "green", "tuning": "cyan", "ended": "dim"}
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Column:
    """One column of a table with its cells."""

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
    columns = [_column(each, machine.gpus) for each in of_gpus(lambda _: machine.hostname, curves)]
    return [*shown, *_table(columns, width, len(machine.gpus))]


def _jobs(frame: Frame, width: int, curves: Curves, sort: str) -> list[Text]:
    ended = [job for job in frame.jobs if job.state == "ended"]
    running = [job for job in frame.jobs if job.state != "ended"]
    jobs = [*sorted(running, key=SORTS[sort]), *ended]
    if not jobs:
        return [_line("No job runs. flatout run train.py starts one.", width)]
    several = len({machine.hostname for machine in frame.machines}) > 1
    columns = [_column(each, jobs) for each in of_jobs(curves, several)]
    styles = [STATE_STYLES.get(job.state, "") for job in jobs]
    return _table(columns, width, len(jobs), styles)


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


def _column(column: TableColumn[T], items: Sequence[T]) -> Column:
    cells = tuple(map(column.text, items))
    return Column(column.heading, cells, column.importance, column.left, column.least)


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
