"""What `flatout profile` prints: one screen that says where the step goes and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, WAITS, Kind, Part
from flatout.nouns.profile import Place, Profile, Profiled
from flatout.reporting import plain
from flatout.reporting.paragraphs import LABEL, Line, paragraph, show, whole, width_of
from flatout.reporting.profile import host, words

if TYPE_CHECKING:
    from rich.console import Console

NAME = 26
"""Width of the anatomy's second column."""
FIGURES = 9 + 6 + 2
"""Width of the time, the share and the space before the bar."""
SHORTEST, TALLEST = 24, 40
"""Lines of a screen: a smaller one counts as 24; a larger one, or a pipe, as 40."""
SHORT = 36
"""On screens with fewer lines, the least important ones are left out."""
BLOCK = "█"  # full block
STYLES = {
    **dict.fromkeys(WAITS, "yellow"),
    **dict.fromkeys(HOST_PARTS, "yellow"),
    Kind.COPY: "magenta",
    Kind.COMMUNICATION: "magenta",
    Kind.CONVERSION: "magenta",
    Kind.OTHER: "bright_black",
}
"""Styles of bars; all other kinds are work, in blue."""


def profile(profiled: Profiled, console: Console | None = None) -> None:
    """Print one screen of it; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    height = console.height if console.is_terminal else TALLEST
    for line in screen(
        profiled, width_of(console), min(max(height, SHORTEST), TALLEST), mark_for(console)
    ):
        show(console, line)


def screen(profiled: Profiled, width: int, height: int, mark: str = "#") -> list[Line]:
    """At most `height` lines, less one for the prompt, as long as findings' titles are short."""
    short = height < SHORT
    head = list(_head(profiled, width, short))
    tail = list(_tail(profiled, width, short))
    anatomy = list(_anatomy(profiled, width, 6 if short else 12, mark))
    host_lines = _host(profiled.profile, width, 1 if short else 3)
    top = [*head, Line(""), *anatomy, *host_lines, *_reached(profiled, width, short)]
    # The prompt, two empty lines, and the line that announces more findings.
    room = height - len(top) - len(tail) - 4
    findings, count = _findings(profiled, width, room, short)
    rest = len(profiled.findings) - count
    if rest:
        findings += paragraph("", f"{rest} more with --json and in the report", width, "")
    return [
        *top,
        *([Line(""), *findings] if findings else []),
        *([Line(""), *tail] if tail else []),
    ]


def _head(profiled: Profiled, width: int, short: bool) -> Iterator[Line]:
    recording = profiled.profile
    style = "bold yellow" if words.worth_doing(profiled) else "bold green"
    yield from paragraph("step", words.headline(recording), width, "bold")
    yield from paragraph("verdict", words.verdict(profiled), width, style)
    if short:
        return
    name = plain.one_line(recording.device_name or "")
    recorded = f"{units.count(recording.anatomy.steps, 'step')} recorded"
    ranks = units.count(len(recording.ranks), "rank") if len(recording.ranks) > 1 else ""
    text = ", ".join(part for part in (name, recorded, ranks) if part)
    yield from paragraph("on", text, width, "bold")


def _anatomy(profiled: Profiled, width: int, at_most: int, mark: str) -> Iterator[Line]:
    """A row for each part; each bar begins where the one above ended, so that they add up."""
    anatomy = profiled.profile.anatomy
    rows = words.folded(anatomy, at_most)
    room = max(width - LABEL - NAME - FIGURES, 0)
    begun = 0.0
    for number, (name, part) in enumerate(rows):
        label = "anatomy" if number == 0 else ""
        share = part.ms / anatomy.step_ms if anatomy.step_ms else 0.0
        first, last = round(room * begun), round(room * min(begun + share, 1.0))
        begun += share
        cells = mark * (last - first) or "|"  # what is shorter than a cell is still shown
        first = min(first, max(room - 1, 0))
        bar = " " * first + cells if room else ""
        yield _row(label, name, part, share, bar, first)
    whole = Part(Kind.OTHER, anatomy.step_ms)
    yield _row("", "step" if profiled.profile.trace_steps else "recorded", whole, 1.0, "", 0)


def _row(label: str, name: str, part: Part, share: float, bar: str, begin: int) -> Line:
    short_name = plain.cut(name, NAME - 1)
    figures = f"{units.milliseconds(part.ms):>9}{units.share(share):>6}"
    left = f"{label:<{LABEL}}{short_name:<{NAME}}{figures}  "
    style = STYLES.get(part.kind, "blue")
    text = f"{left}{bar}"
    return Line(text, ((0, len(label), "bold"), (len(left) + begin, len(text), style)))


def _host(profile: Profile, width: int, at_most: int) -> Iterator[Line]:
    """The user's own lines that cost the host time, under the columns of the anatomy."""
    step_ms = profile.anatomy.step_ms
    for number, line in enumerate(host.costliest(profile, at_most)):
        label = "host" if number == 0 else ""
        figures = f"{units.milliseconds(line.ms):>9}{units.share(line.ms / step_ms):>6}"
        left = f"{label:<{LABEL}}{_place(line.where, NAME - 1):<{NAME}}{figures}  "
        source = plain.cut(plain.one_line(line.where.source), max(width - len(left), 0))
        text = f"{left}{source}".rstrip()
        yield Line(text, ((0, len(label), "bold"), (len(left), len(text), "cyan")))


def _place(place: Place, width: int) -> str:
    """train.py:14 mask(); if too long, its end without the function."""
    location = plain.one_line(str(place))
    name = plain.one_line(place.function).rpartition(".")[2]
    named = f"{location} {name}()" if name.isidentifier() else location
    if len(named) <= width:
        return named
    return location if len(location) <= width else f"...{location[3 - width :]}"


def _reached(profiled: Profiled, width: int, short: bool) -> Iterator[Line]:
    phrases = list(words.reached(profiled.profile))
    while short and len("; ".join(phrases)) > width - LABEL and len(phrases) > 1:
        phrases.pop()
    if phrases:
        yield from paragraph("reached", "; ".join(phrases), width, "bold")
    overlapped = ", ".join(words.overlapped(profiled.profile))
    if overlapped and not short:
        yield from paragraph("parallel", overlapped, width, "bold")


def _findings(profiled: Profiled, width: int, room: int, short: bool) -> tuple[list[Line], int]:
    """(lines of the findings that fit in `room` lines, at least one finding; their number)."""
    lines: list[Line] = []
    count = 0
    for finding in profiled.findings:
        label = finding.severity.value
        if finding.gain is not None:  # for example "1.85x"; for a bound "<8.2x"
            label = f"{'<' if finding.gain.bounds else ''}{units.ratio(finding.gain.ratio)}"
        style = "bold yellow" if words.saved(finding) > profiled.fail_over else "bold cyan"
        place = f"{finding.where}: " if finding.where else ""
        finding_lines = [*paragraph(label, f"{finding.code} {place}{finding.title}", width, style)]
        cure, more, _ = finding.cure.text.partition(". ")  # all sentences are in the report
        finding_lines += paragraph("  cure", f"{cure}." if more else cure, width, "dim")
        # The most important line: the first new one, else the first that is not a remark.
        commands = finding.cure.commands
        code = [line for line in commands if not line.startswith(("#", "- "))] or [*commands, ""]
        change = plain.one_line(next((line for line in code if line.startswith("+ ")), code[0]))
        if change and not short:
            finding_lines.append(Line(f"{'':{LABEL}}{change}", ((0, LABEL + len(change), "cyan"),)))
        if count and len(lines) + len(finding_lines) > room:
            break
        lines += finding_lines
        count += 1
    return lines, count


def _tail(profiled: Profiled, width: int, short: bool) -> Iterator[Line]:
    note_count = 1 if short else 2
    for note in profiled.notes[:note_count]:
        yield from paragraph("note", note, width, "bold")
    if len(profiled.notes) > note_count:
        rest = units.count(len(profiled.notes) - note_count, "more note")
        yield from paragraph("note", f"{rest} in the report", width, "bold")
    if profiled.report_path:
        yield whole("report", profiled.report_path, "bold")
    command = profiled.profile.command
    boosts = dict.fromkeys(finding.boost for finding in profiled.findings if finding.boost)
    if boosts and not short:
        text = f"{', '.join(boosts)} (no edit needed)"
        yield from paragraph("boosts", text, width, "bold green")
    if command and boosts:
        yield whole("next", f"flatout tune {plain.command_line(command)}", "bold cyan")
    elif profiled.findings:
        yield whole("next", f"flatout explain {profiled.findings[0].code}", "bold cyan")


def mark_for(console: Console) -> str:
    """The character for bars: ASCII, unless the terminal can show better."""
    if not console.is_terminal or console.is_dumb_terminal:
        return "#"
    return BLOCK if plain.encodable(BLOCK, console.encoding) == BLOCK else "#"
