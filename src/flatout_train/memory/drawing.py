"""The chart of a memory history: one self-contained page with an SVG and a table."""

from __future__ import annotations

import html
import itertools
import linecache
import math
from collections.abc import Iterable, Sequence

from flatout_train.memory.timeline import PARTS, Timeline, TimelinePoint
from flatout_train.sizes import size

_COLOURS = {
    "before": "#8c8c8c",
    "forward": "#4477aa",
    "backward": "#ee6677",
    "optimizer": "#228833",
    "other": "#ccbb44",
}
_LABELS = {"before": "in use before", "other": "elsewhere"}
_WIDTH, _HEIGHT = 920, 360
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 16, 36, 40
_BINS = 460
"""Bins along the time axis; of each, the moment with most bytes is drawn."""
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1a1a1a;background:#fff}
h1{font-size:1.35rem;margin:0}p{margin:.4rem 0 1rem}svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:currentColor}
.key{display:inline-block;margin-right:1.2rem}.key i{display:inline-block;width:.8rem;height:.8rem;
margin-right:.4rem;border-radius:2px}
table{border-collapse:collapse;width:100%;margin-top:1rem}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
td.number,th.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#181818}}
"""


def page(timeline: Timeline, device: str) -> str:
    """The page as HTML text."""
    title = f"Memory of {html.escape(device)} over time"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f"<p>{_summary(timeline)}</p>",
            _legend(timeline.moments),
            _drawing(timeline),
            _table(timeline),
            "</body></html>\n",
        ]
    )


def _summary(timeline: Timeline) -> str:
    if not timeline.moments:
        return "Nothing was allocated."
    last = timeline.moments[-1]
    return (
        f"Peak <b>{size(timeline.peak)}</b> after {_time(timeline.peak_at or 0.0)}; "
        f"{size(last.total)} in use at the end; {len(timeline.allocations)} allocations in "
        f"{_time(last.seconds)}."
    )


def _legend(moments: Sequence[TimelinePoint]) -> str:
    used = [part for place, part in enumerate(PARTS) if any(m.bytes[place] for m in moments)]
    keys = [
        f'<span class="key"><i style="background:{_COLOURS[part]}"></i>{_LABELS.get(part, part)}'
        "</span>"
        for part in reversed(used)
    ]
    return f"<div>{''.join(keys)}</div>"


def _drawing(timeline: Timeline) -> str:
    if not timeline.moments:
        return ""
    end = timeline.moments[-1].seconds or 1e-9
    most = timeline.peak or 1
    points = _thinned(timeline.moments, end)

    def x(seconds: float) -> float:
        return _LEFT + seconds / end * (_WIDTH - _LEFT - _RIGHT)

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / most * (_HEIGHT - _TOP - _BOTTOM)

    shapes = []
    below = [0] * len(points)
    for place, part in enumerate(PARTS):
        above = [low + point.bytes[place] for low, point in zip(below, points, strict=True)]
        if above != below:
            upper = [(x(p.seconds), y(count)) for p, count in zip(points, above, strict=True)]
            lower = [(x(p.seconds), y(count)) for p, count in zip(points, below, strict=True)]
            outline = _path([*_steps(upper), *reversed(_steps(lower))])
            shapes.append(f'<polygon fill="{_COLOURS[part]}" points="{outline}"/>')
        below = above
    ticks = [_level(y(count), size(count)) for count in _ticks(most)]
    times = [_moment(x(end * share / 4), _time(end * share / 4)) for share in range(5)]
    peak_x, peak_y = x(timeline.peak_at or 0.0), y(most)
    mark = f'<circle cx="{peak_x:.1f}" cy="{peak_y:.1f}" r="4" fill="none" stroke="currentColor"/>'
    label = f"Memory over time by part of the step; peak {size(most)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        + "".join([*ticks, *shapes, *times, mark])
        + "</svg>"
    )


def _thinned(moments: Sequence[TimelinePoint], end: float) -> list[TimelinePoint]:
    """At most one moment per bin, the one with most bytes, and the last moment."""
    best: dict[int, TimelinePoint] = {}
    for moment in moments:
        place = int(moment.seconds / end * _BINS)
        if place not in best or moment.total > best[place].total:
            best[place] = moment
    thinned = list(best.values())
    if thinned[-1] is not moments[-1]:
        thinned.append(moments[-1])
    return thinned


def _steps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a step function: memory is constant until it changes."""
    drawn = points[:1]
    for before, now in itertools.pairwise(points):
        drawn += [(now[0], before[1]), now]
    return drawn


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(most: int) -> list[int]:
    """About four round levels up to `most` bytes."""
    unit = 1024 ** max(0, int(math.log(most, 1024))) if most >= 1024 else 1
    rough = most / unit / 4
    power = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [int(step * unit * place) for place in range(int(most / unit / step) + 1)]


def _level(y: float, label: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _moment(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{label}</text>'


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} &micro;s"


def _table(timeline: Timeline) -> str:
    rows = [
        f'<tr><td class="number">{size(total)}</td><td class="number">{count}</td>'
        f"<td><code>{html.escape(place)}</code><br><code>{html.escape(_source(place))}</code></td>"
        "</tr>"
        for total, place, count in timeline.largest()
    ]
    if not rows:
        return ""
    return (
        '<table><tr><th class="number">in use at the peak</th><th class="number">pieces</th>'
        f"<th>allocated by</th></tr>{''.join(rows)}</table>"
    )


def _source(place: str) -> str:
    """The line of the program, where its file can be read."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""
