"""One frame as lines of text: fits any width and height, with or without colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flatout.nouns.frame import Frame
from flatout.reporting.monitor import alert_lines, words
from flatout.reporting.monitor.columns import of_gpus, of_jobs, ordered
from flatout.reporting.monitor.curves import Curves
from flatout.reporting.monitor.fitting import GAP, FittedColumn, cut, fit, padded, wrapped

STATE_STYLES = {"stalled": "bold red", "training": "green", "tuning": "cyan", "ended": "dim"}
NO_JOB = "No job runs. flatout run train.py starts one."
WIDE = 110
"""From this width on, the machine's line has room for a curve."""


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
    title = f"flatout monitor  {words.clock(frame.time_s)}  {words.counts(frame)}"
    body = [_line(title, width, "bold")]
    for machine in frame.machines:
        busy = ""
        if width >= WIDE:
            busy = words.curve(curves.of(machine.hostname, "cores"), 10, 0.0, 1.0)
        body += [_line(line, width) for line in wrapped(words.machine(machine, busy), width)]
        if machine.gpus:
            columns = of_gpus(machine.hostname, curves)
            body += _table(fit(columns, machine.gpus, width), len(machine.gpus))
    body.append(Text())
    foot = [_line(footer, width, "dim")] if footer else []
    room = height - len(body) - len(foot)
    jobs = [_line(NO_JOB, width)]
    if shown := ordered(frame.jobs, sort):
        several = len({machine.hostname for machine in frame.machines}) > 1
        styles = [STATE_STYLES.get(job.state, "") for job in shown]
        jobs = _table(fit(of_jobs(curves, several), shown, width), len(shown), styles)
    wanted = len(alert_lines.lines(frame, width, height))
    most = max(2, room - min(wanted + 1, max(3, room // 2)))
    if len(jobs) > most:
        hidden = len(jobs) - most + 1
        jobs = [*jobs[: most - 1], _line(f"  and {hidden} more", width, "dim")]
    alerts = alert_lines.lines(frame, width, max(0, room - len(jobs) - 1))
    body += [*jobs, *([Text(), *alerts] if alerts else [])]
    return [*body[: max(0, height - len(foot))], *foot][:height]


def _table(columns: Sequence[FittedColumn], rows: int, styles: Sequence[str] = ()) -> list[Text]:
    """Headings and rows."""
    gap = " " * GAP
    heads = gap.join(padded(each.heading, each.width, each.left) for each in columns)
    shown = [Text(heads.rstrip(), style="dim")]
    for row in range(rows):
        cells = (padded(each.cells[row], each.width, each.left) for each in columns)
        style = styles[row] if row < len(styles) else ""
        shown.append(Text(gap.join(cells).rstrip(), style=style))
    return shown


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(cut(text.rstrip(), width), style=style)
