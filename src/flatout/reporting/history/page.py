"""The report of a run: one HTML file that holds everything and asks no server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from flatout.nouns import units
from flatout.nouns.ranks import Scaling
from flatout.reporting import html
from flatout.reporting.history import charts, words
from flatout.reporting.history.series import RunSeries


def write(series: RunSeries, path: Path, trial: Scaling | None = None) -> None:
    """Write the page, whole or not at all. Raises OSError where that cannot be done.

    trial: of several ranks, before the run.
    """
    html.write_page(render(series, trial), path)


def render(series: RunSeries, trial: Scaling | None = None) -> str:
    """The page as text."""
    from plotly.offline import get_plotlyjs

    plotly = get_plotlyjs()
    script = (html.TEMPLATES / "report.js").read_text(encoding="utf-8")
    drawn = charts.charts(series, trial)
    figures = {chart.id: {"data": chart.traces, "layout": chart.layout} for chart in drawn.values()}
    page = (
        html.templates(duration=units.duration, clock=clock)
        .get_template("history.html.j2")
        .render(
            series=series,
            title=words.headline(series),
            facts=words.facts(series),
            charts=drawn,
            figures=html.script_json(figures),
            style=(html.TEMPLATES / "report.css").read_text(encoding="utf-8"),
            plotly=plotly,
            script=script,
            script_hashes=[html.digest(plotly), html.digest(script)],
        )
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def clock(time_s: float | None) -> str:
    """Local time of day with its date."""
    if time_s is None:
        return units.UNKNOWN
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
