"""The report of a run: one self-contained HTML file that needs no server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from flatout.nouns import units
from flatout.nouns.ranks import Scaling
from flatout.reporting import html
from flatout.reporting.chart import curve_charts
from flatout.reporting.history import charts, words
from flatout.reporting.history.series import RunSeries


def write(series: RunSeries, path: Path, trial: Scaling | None = None) -> None:
    """Write the page, whole or not at all. Raises OSError if that fails.

    trial: the trial of ranks before the run.
    """
    html.write_page(render(series, trial), path)


def render(series: RunSeries, trial: Scaling | None = None) -> str:
    """The page as text."""
    drawn = charts.charts(series, trial)
    return html.page(
        "history.html.j2",
        curve_charts(drawn),
        {"clock": clock},
        series=series,
        title=words.headline(series),
        facts=words.facts(series),
        charts=drawn,
    )


def clock(time_s: float | None) -> str:
    """Local time of day with the date."""
    if time_s is None:
        return units.UNKNOWN
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
