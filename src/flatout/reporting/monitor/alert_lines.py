"""Alerts as lines of text: a line for each, and the cure as far as there is room."""

from __future__ import annotations

import textwrap

from rich.text import Text

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.reporting import plain
from flatout.reporting.monitor import words
from flatout.reporting.monitor.fitting import cut

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
MOST_RESOLVED = 3
INDENT = "  "
LEAST_WRAPPED = 20
"""Narrower texts are cut: wrapped, they would have one word a line."""


def lines(frame: Frame, width: int, room: int) -> list[Text]:
    """At most `room` lines of at most `width` cells: the notes, then the worst alerts first."""
    over = {job.id for job in frame.jobs if job.state == "ended"}
    firing = [alert for alert in frame.alerts if alert.state == "firing"]
    # What can still be helped comes before what jobs have died of.
    firing.sort(key=lambda alert: alert.job in over)
    resolved = [alert for alert in frame.alerts if alert.state == "resolved"][:MOST_RESOLVED]
    notes = [Text(cut(plain.one_line(note), width), style="yellow") for note in frame.notes]
    count = len(notes) + len(firing) + len(resolved)
    if count > room:
        shown = [*notes, *(_headline(alert, frame, width) for alert in firing)]
        shown = shown[: max(0, room - 1)]
        hidden = cut(f"and {count - len(shown)} more", width)
        return [*shown, Text(hidden, style="dim")][:room]
    spare = room - count
    shown = notes
    for alert in firing:
        told = details(alert, width)
        if len(told) > spare:
            told = details(alert, width, wrap=False)[:spare]
        spare -= len(told)
        shown += [_headline(alert, frame, width), *told]
    return [*shown, *(_headline(alert, frame, width) for alert in resolved)]


def details(alert: Alert, width: int, wrap: bool = True) -> list[Text]:
    """Start time, evidence, cure and commands."""
    boost = f" Boost: {alert.boost}." if alert.boost else ""
    where = f" ({alert.where})" if alert.where else ""
    since = f"since {words.clock(alert.since_s)}: {alert.evidence}{where}"
    shown = [
        Text(line)
        for text in (since, f"{alert.cure.text}{boost}")
        for line in _lines(text, width, wrap)
    ]
    for command in (*alert.cure.commands, f"flatout explain {alert.code}"):
        prompt = "" if command.startswith("#") else "$ "
        told = _lines(f"{prompt}{plain.one_line(command)}", width, wrap)
        shown += [Text(line, style="cyan") for line in told]
    return shown


def _headline(alert: Alert, frame: Frame, width: int) -> Text:
    """One line: what happened, and to which job."""
    style = SEVERITY_STYLES.get(alert.severity, "") if alert.state == "firing" else "dim"
    text = Text(cut(words.alert(alert), width), style=style)
    about = words.about(alert, frame)
    room = width - text.cell_len - len(INDENT)
    return (
        text.append(f"{INDENT}{cut(about, room)}", "not bold dim") if about and room > 8 else text
    )


def _lines(text: str, width: int, wrap: bool) -> list[str]:
    line = plain.one_line(text)
    if not wrap or width < LEAST_WRAPPED:
        return [cut(f"{INDENT}{line}", width)]
    broken = textwrap.wrap(
        line, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
    )
    return [cut(part, width) for part in broken]
