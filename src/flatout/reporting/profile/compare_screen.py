"""What `flatout compare A B` prints: both steps part by part, and what else changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.finding import LARGEST
from flatout.reporting import plain
from flatout.reporting.paragraphs import LABEL, Line, paragraph, show, width_of
from flatout.reporting.profile import words
from flatout.reporting.profile.compare import Change, FindingSummary, ProfileComparison
from flatout.reporting.profile.screen import mark_for

if TYPE_CHECKING:
    from rich.console import Console

NAME = 26
AT_MOST = 5
"""The most lines of one kind; all of them are in the JSON."""
BETTER, WORSE = "green", "red"


def compared(
    comparison: ProfileComparison,
    names: tuple[str, str] = ("A", "B"),
    console: Console | None = None,
) -> None:
    """Print the changes; on stdout unless another console is given. names: of the two profiles."""
    from rich.console import Console

    console = console or Console()
    for line in lines(comparison, names, width_of(console), mark_for(console)):
        show(console, line)


def lines(
    comparison: ProfileComparison, names: tuple[str, str], width: int, mark: str = "#"
) -> Iterator[Line]:
    """The lines of the screen."""
    style = f"bold {_style(comparison.after_ms - comparison.before_ms)}"
    before, after = map(units.milliseconds, (comparison.before_ms, comparison.after_ms))
    per = " per sample" if comparison.samples else ""
    verdict = f"{before} -> {after} per step, {units.ratio(comparison.ratio)} as fast{per}"
    yield from paragraph("verdict", verdict, width, style)
    title = f"{plain.one_line(names[0])} -> {plain.one_line(names[1])}"
    yield from paragraph("profiles", title, width, "bold")
    yield Line("")
    head = f"{'':{LABEL}}{'part':<{NAME}}{'before':>10}{'after':>10}{'change':>10}"
    yield Line(head, ((0, len(head), "dim"),))
    changes = comparison.parts
    room = width - len(head) - 2
    largest_ms = max((abs(change.ms) for change in changes), default=0.0) or 1.0
    for number, change in enumerate(changes):
        label = "anatomy" if number == 0 else ""
        bar = mark * round(room * abs(change.ms) / largest_ms)
        yield _row(label, change, bar)
    step = Change("step", comparison.before_ms, comparison.after_ms)
    yield _row("", step, "")
    yield Line("")
    settings = [
        f"{setting.name} {setting.before} -> {setting.after}" for setting in comparison.settings
    ]
    yield from _listed("setting", settings, width)
    yield from _listed("slower", _kernels(comparison.kernels, faster=False), width, WORSE)
    yield from _listed("faster", _kernels(comparison.kernels, faster=True), width, BETTER)
    changed = [f"{_signed(line.ms)}: {line.name} ({_times(line)})" for line in comparison.lines]
    yield from _listed("line", changed, width)
    yield from _listed("new", [_finding(finding) for finding in comparison.new], width, WORSE)
    yield from _listed("gone", [_finding(finding) for finding in comparison.gone], width, BETTER)
    for caveat in comparison.caveats:
        yield from paragraph("note", caveat, width, "bold yellow")


def _row(label: str, change: Change, bar: str) -> Line:
    before, after = map(units.milliseconds, (change.before_ms, change.after_ms))
    name = plain.cut(change.name, NAME - 1)
    left = f"{label:<{LABEL}}{name:<{NAME}}{before:>10}{after:>10}{_signed(change.ms):>10}  "
    text = f"{left}{bar}"
    return Line(text, ((0, len(label), "bold"), (len(left), len(text), _style(change.ms))))


def _listed(label: str, items: list[str], width: int, style: str = "") -> Iterator[Line]:
    for text in items[:AT_MOST]:
        yield from paragraph(label, text, width, f"bold {style}")
    if len(items) > AT_MOST:
        yield from paragraph(label, f"{len(items) - AT_MOST} more (--json)", width, "bold")


def _kernels(changes: Iterable[Change], faster: bool) -> list[str]:
    return [
        f"{_signed(change.ms)}: {words.kernel(change.name, 60)} ({_times(change)}, "
        f"{change.calls_before:,.0f} -> {change.calls_after:,.0f} calls)"
        for change in changes
        if (change.ms < 0) is faster
    ]


def _times(change: Change) -> str:
    return f"{units.milliseconds(change.before_ms)} -> {units.milliseconds(change.after_ms)}"


def _finding(finding: FindingSummary) -> str:
    place = f" {finding.where}" if finding.where else ""
    bound = "at most " if finding.ratio and finding.ratio > LARGEST else ""
    ratio = f" ({bound}{units.ratio(finding.ratio)})" if finding.ratio else ""
    return f"{finding.code}{place}: {finding.title}{ratio}"


def _signed(ms: float) -> str:
    return (
        units.milliseconds(0.0)
        if abs(ms) < 0.005
        else f"{'+' if ms > 0 else '-'}{units.milliseconds(abs(ms))}"
    )


def _style(ms: float) -> str:
    return BETTER if ms <= 0 else WORSE
