"""The terminal: answers on stdout, all else on stderr. Light to import: rich is imported later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.run_end import RunEnd
from flatout.reporting import plain
from flatout.reporting.bench import BenchView, bench
from flatout.reporting.doctor import doctor
from flatout.reporting.paragraphs import Line, show
from flatout.reporting.profile.screen import profile
from flatout.reporting.progress import TuneView
from flatout.reporting.summary import summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "BenchView",
    "TuneView",
    "answers",
    "bench",
    "doctor",
    "error",
    "next_step",
    "other_torch",
    "profile",
    "run_ended",
    "run_words",
    "say",
    "summary",
    "warn",
]

NAME = "flatout: "


def error(message: str, next_step: str = "", console: Console | None = None) -> None:
    """What went wrong and where, and the next command or step."""
    _tell("error: ", "bold red", message, console)
    if next_step:
        _tell("next: ", "bold", next_step, console)


def next_step(step: str, console: Console | None = None) -> None:
    """The next command or step, if the error is already shown above."""
    _tell("next: ", "bold", step, console)


def say(line: str, console: Console | None = None) -> None:
    """A line that is neither an error nor a warning."""
    _tell("", "", line, console)


def warn(line: str, console: Console | None = None) -> None:
    """One line that the user should know; the work goes on."""
    _tell("warning: ", "yellow", line, console)


def errors() -> Console:
    """The console for everything but answers: plain lines, in a notebook too."""
    from rich.console import Console

    return Console(stderr=True, force_jupyter=False)


def answers() -> Console:
    """Where answers go: plain lines in a notebook, too."""
    from rich.console import Console

    return Console(force_jupyter=False)


def other_torch(plan_torch: str | None, versions: set[str]) -> None:
    """Warn where torch was another than the plan's; plan_torch: the version in the plan."""
    if plan_torch is not None and (others := versions - {plan_torch}):
        warn(f"torch {', '.join(sorted(others))} instead of the plan's {plan_torch}")


def run_ended(end: RunEnd, quiet: bool) -> None:
    """The end of `flatout run`; quiet: warnings only."""
    if end.steps and not quiet:
        _tell("", "", run_words(end), None)
        for note in end.notes:
            _tell("note: ", "bold", note, None)
        for fault in end.faults:
            warn(f"error inside flatout, your program is not affected: {fault}")
        return
    if end.interrupted and not quiet:  # then its notes, why there was no step, are wrong
        say("interrupted before its first step")
    for line in (*(() if quiet or end.interrupted else end.notes), *end.faults):
        warn(line)


def run_words(end: RunEnd) -> str:
    """Its figures, and which boosts took hold, in one line."""
    steps = units.count(end.steps, "step")
    figures = [f"interrupted after {steps}" if end.interrupted else steps]
    if end.samples_per_s is not None:
        figures.append(units.rate(end.samples_per_s))
    if end.peak_bytes is not None:
        figures.append(f"peak memory {units.size(end.peak_bytes)}")
    if end.wait_share is not None:
        figures.append(f"{units.share(end.wait_share)} of the time waiting for data")
    parts = [", ".join(figures)]
    if end.engaged:
        parts.append("engaged: " + ", ".join(end.engaged))
    if end.not_engaged:
        reasons = (
            f"{boost} ({plain.last_line(reason)})" for boost, reason in end.not_engaged.items()
        )
        parts.append("not engaged: " + ", ".join(reasons))
    return "; ".join(parts)


def _tell(label: str, style: str, line: str, console: Console | None) -> None:
    begin, end = len(NAME), len(NAME) + len(label)
    text = f"{NAME}{label}{plain.one_line(line)}"
    show(console or errors(), Line(text, ((0, begin, "bold"), (begin, end, style))))
