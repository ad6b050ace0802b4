"""Charts as plain numbers and words: bars for the page's template, curves for its script.

Colours are names of the style sheet ("plan"), so that light, dark and print all fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MANY = 12
"""Points of a curve from which on they are no longer marked, and zooming is of use."""


@dataclass(frozen=True)
class Axis:
    """What it measures, in which unit; it holds all points."""

    name: str
    unit: str = ""
    zero: bool = False
    """It begins at zero."""
    log: bool = False
    ticks: Sequence[float] = ()
    """The only numbers at it; none: round ones."""

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, joined by a line; y None: a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    width: int = 2
    """Of the line, in pixels; 0: points alone."""
    dash: Sequence[int] = ()
    point: int = 0
    """Diameter of its points, in pixels; 0: none."""
    shape: Literal["circle", "diamond", "square"] = "circle"
    texts: Sequence[str] = ()
    """What is told of each point besides its numbers."""
    labels: Sequence[str] = ()
    """What stands at each point."""
    bounds: Sequence[tuple[float, float]] = ()
    """The interval of each y."""


@dataclass(frozen=True)
class Mark:
    """A band behind the curves from low to high of one axis; a line where they are the same."""

    axis: Literal["x", "y"]
    low: float
    high: float
    colour: str = "ink"
    dash: Sequence[int] = ()


@dataclass(frozen=True)
class CurveChart:
    """Curves over common axes."""

    id: str
    title: str
    """What it shows, in one sentence."""
    note: str
    """How to read it; also for screen readers."""
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()
    legend: bool = True
    """The names of several curves stand below."""

    @property
    def zooms(self) -> bool:
        """Whether a part of x can be drawn over the whole width."""
        return not self.x.log and any(len(curve.x) > MANY for curve in self.curves)


@dataclass(frozen=True)
class Bar:
    """One row: a bar from begin to end, and the number told beside it."""

    name: str
    text: str
    begin: float
    end: float
    colour: str


@dataclass(frozen=True)
class BarChart:
    """Bars in rows over a common axis."""

    id: str
    title: str
    note: str
    axis: str
    """What is told beside the bars, in which unit."""
    bars: Sequence[Bar]
    shown: tuple[float, float]
    """Ends of the axis."""
    band: tuple[float, float] | None = None
    """Behind the bars."""

    def place(self, begin: float, end: float) -> str:
        """Where it stands, as a style."""
        (low, high), (first, last) = sorted((begin, end)), self.shown
        scale = 100 / (last - first or 1.0)
        return f"left: {scale * (low - first):.2f}%; width: {scale * (high - low):.2f}%"


Chart = CurveChart | BarChart


def curve_charts(charts: dict[str, Chart]) -> dict[str, CurveChart]:
    """Those that the page's script draws."""
    return {name: chart for name, chart in charts.items() if isinstance(chart, CurveChart)}


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, width: int = 2
) -> Curve:
    """A curve whose points are marked where they are few."""
    return Curve(name, x, y, colour, width, point=width + 4 if len(x) <= MANY else 0)
