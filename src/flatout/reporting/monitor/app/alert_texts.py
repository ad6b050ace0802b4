"""Alerts as texts of the application."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flatout.nouns.alert import Alert
from flatout.reporting import plain
from flatout.reporting.monitor import words

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
MOST_RESOLVED = 5


def detailed(alerts: Sequence[Alert], notes: Sequence[str] = ()) -> Text:
    """Each with evidence and cure; pending ones are not told; then the notes."""
    text = Text()
    for alert in (alert for alert in alerts if alert.state == "firing"):
        style = SEVERITY_STYLES.get(alert.severity, "")
        text.append(f"{plain.one_line(words.alert(alert))}\n", style=style)
        text.append(f"  since {words.clock(alert.since_s)}: ", style="dim")
        text.append(f"{plain.one_line(alert.evidence)}\n")
        boost = f" Boost: {alert.boost}." if alert.boost else ""
        text.append(f"  {plain.one_line(alert.cure.text)}{boost}\n")
        for command in (*alert.cure.commands, f"flatout explain {alert.code}"):
            text.append(f"  $ {plain.one_line(command)}\n", style="cyan")
    for alert in [alert for alert in alerts if alert.state == "resolved"][:MOST_RESOLVED]:
        text.append(f"{plain.one_line(words.alert(alert))}\n", style="dim")
    for note in notes:
        text.append(f"{plain.one_line(note)}\n", style="yellow")
    return text
