"""A run's history in the terminal: the figures, the alerts, the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from flatout.nouns import units
from flatout.reporting.history import words
from flatout.reporting.history.series import RunSeries
from flatout.reporting.paragraphs import show, styled

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow"}


def shown(series: RunSeries, page: Path | None, console: Console | None = None) -> None:
    """Print it. page: where the report was written."""
    console = console or Console()
    show(console, styled(words.headline(series), "bold"))
    for name, value in words.facts(series):
        if value not in (units.UNKNOWN, "none"):
            show(console, styled(f"  {name}: {value}", ""))
    for alert in series.alerts:
        show(console, styled(words.alert_line(alert), SEVERITY_STYLES.get(alert.severity, "")))
    if not series.alerts:
        show(console, styled("no alert fired", "green"))
    if page is not None:
        show(console, styled(f"report: {page}", ""))
