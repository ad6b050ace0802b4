"""Charts as plain numbers and words: bars for the page's template, curves for its script.

Colours are names from the style sheet ("plan"), so that light, dark and print all fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MANY = 12
"""From this many points on, a curve's points are no longer marked and zooming helps."""


@dataclass(frozen=True)
class Axis:
    """A quantity and its unit; the axis covers all points."""

    name: str
    unit: str = ""
    zero: bool = False
    """Whether it begins at zero."""

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, joined by a line; where y is None there is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    width: int = 2
    """The line's width in pixels, or 0 for points alone."""
    dash: Sequence[int] = ()
    point: int = 0
    """The points' diameter in pixels, or 0 for none."""
    texts: Sequence[str] = ()
    """What is said about each point besides its numbers."""


@dataclass(frozen=True)
class Mark:
    """A band behind the curves from low to high on one axis; a line if both are equal."""

    axis: Literal["x", "y"]
    low: float
    high: float
    colour: str = "ink"
    dash: Sequence[int] = ()


@dataclass(frozen=True)
class CurveChart:
    """Curves on common axes."""

    id: str
    title: str
    """What it shows, in one sentence."""
    note: str
    """How to read it; also for screen readers."""
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()

    @property
    def zooms(self) -> bool:
        """Whether part of x can be enlarged to the whole width."""
        return any(len(curve.x) > MANY for curve in self.curves)


@dataclass(frozen=True)
class Bar:
    """One row: a bar from begin to end, with its number beside it."""

    name: str
    text: str
    begin: float
    end: float
    colour: str


@dataclass(frozen=True)
class BarChart:
    """Bars in rows on a common axis."""

    id: str
    title: str
    note: str
    axis: str
    """The quantity beside the bars, and its unit."""
    bars: Sequence[Bar]
    shown: tuple[float, float]
    """Ends of the axis."""
    band: tuple[float, float] | None = None
    """A band behind the bars."""

    def place(self, begin: float, end: float) -> str:
        """The position of a bar, as a CSS style."""
        (low, high), (first, last) = sorted((begin, end)), self.shown
        scale = 100 / (last - first or 1.0)
        return f"left: {scale * (low - first):.2f}%; width: {scale * (high - low):.2f}%"


Chart = CurveChart | BarChart


def curve_charts(charts: dict[str, Chart]) -> dict[str, CurveChart]:
    """The charts that the page's script draws."""
    return {name: chart for name, chart in charts.items() if isinstance(chart, CurveChart)}


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, width: int = 2
) -> Curve:
    """A curve whose points are marked if there are few."""
    return Curve(name, x, y, colour, width, point=width + 4 if len(x) <= MANY else 0)
