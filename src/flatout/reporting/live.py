"""A run that is tuned while it trains: one line on stderr for each decision, a summary at the end.

The program prints meanwhile, so nothing here moves or is drawn over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.run_end import RunEnd
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.reporting import outcome, plain, terminal
from flatout.reporting.paragraphs import show, styled

if TYPE_CHECKING:
    from rich.console import Console


class LiveLines:
    """What a script that is tuned by `flatout.live()` shows of it: lines on stderr."""

    def __init__(self, quiet: bool) -> None:
        """quiet: warnings only."""
        self._quiet, self.decision = quiet, on_decision(quiet)

    def ended(self, end: RunEnd, tuned: Tuned | None, lines: Sequence[str]) -> None:
        """Tell the result; tuned: where it was tuned. lines: what else there is to say."""
        if tuned is not None and not self._quiet:
            closing(tuned)
        for line in () if self._quiet else lines:
            terminal.say(line)
        terminal.run_ended(end, self._quiet)


def on_decision(quiet: bool) -> Callable[[Trial], None]:
    """What to call with each decision; prints nothing if `quiet`."""
    return (lambda trial: None) if quiet else decision


def decision(trial: Trial, console: Console | None = None) -> None:
    """One line for a decision; none for a boost that does not apply or is listed with others."""
    if not is_shown(trial):
        return
    style = "green" if trial.verdict is Verdict.KEPT else "dim"
    show(console or terminal.errors(), styled(f"flatout: {decision_words(trial)}", style))


def is_shown(trial: Trial) -> bool:
    """Whether a decision has a line: not where several were kept together, as those have one."""
    with_others = trial.tried is not None and bool(trial.pairs) and trial.gain is None
    return trial.verdict is not Verdict.SKIPPED and not with_others


def decision_words(trial: Trial) -> str:
    """The line's words."""
    name = "the recipe" if trial.tried is None else plain.named(trial.tried, trial.params)
    figures = []
    if trial.gain is not None:
        interval = "" if trial.interval is None else f" [{units.ratios(trial.interval)}]"
        figures.append(units.ratio(trial.gain) + interval)
    if trial.pairs:
        figures.append(units.count(trial.pairs, "pair"))
    if trial.wall_s:
        figures.append(units.duration(trial.wall_s))
    if trial.verdict is Verdict.KEPT:
        members = f": {', '.join(trial.boosts)}" if trial.tried is None else ""
        return ", ".join([f"{name} on", *figures]) + members
    if trial.verdict is Verdict.SLOWER and trial.pairs:
        unclear = ["no clear gain"] if trial.gain is not None and trial.gain > 1 else []
        if trial.gain is None:
            return f"{name} off, {plain.last_line(trial.reason)}"
        return ", ".join([f"{name} off", *unclear, *figures])
    verdict = "learns differently" if trial.verdict is Verdict.DIFFERENT else str(trial.verdict)
    reason = plain.last_line(trial.reason)
    verdicts = [verdict] if trial.verdict is not Verdict.SLOWER else []
    return ", ".join([f"{name} off", *verdicts, reason])


def close(tuned: Tuned, report: Path, quiet: bool) -> Tuned:
    """Write the report to `report`, and print the result of the tuning."""
    from flatout.reporting import html

    html.write_report(tuned, report)
    tuned = dataclasses.replace(tuned, report_path=str(report))
    if not quiet:
        closing(tuned)
    return tuned


def closing(tuned: Tuned) -> None:
    """Print the result of the tuning of this run."""
    for line, style in closing_lines(tuned):
        show(terminal.errors(), styled(f"flatout: {line}", style))


def closing_lines(tuned: Tuned) -> list[tuple[str, str]]:
    """(line, style), from the gain to the files."""
    before_ms, after_ms = tuned.baseline.step_ms, tuned.best.step_ms if tuned.best else None
    lines: list[tuple[str, str]] = []
    if after_ms is not None:
        before, after = units.milliseconds(before_ms), units.milliseconds(after_ms)
        gain = f"{units.ratio(before_ms / after_ms)} faster: {before} a {unit(tuned)} as written"
        lines.append(
            ("; ".join(filter(None, (f"{gain}, {after} now", saved(tuned)))), "bold green")
        )
    elif tuned.unmeasured:
        names = ", ".join(tuned.unmeasured)
        lines.append((f"it ran with {names}; the program ended before that was measured", "yellow"))
    elif tuned.tried:
        lines.append(("no boost made this program faster; it runs as written", "yellow"))
    else:
        lines.append((outcome.why_nothing(tuned), "yellow"))
    lines += [(f"note: {plain.one_line(note)}", "") for note in tuned.notes]
    if tuned.plan_path:
        path = plain.one_line(tuned.plan_path)
        lines.append((f"plan: {path} (the next `flatout run` starts with it)", ""))
    if tuned.report_path:
        lines.append((f"report: {plain.one_line(tuned.report_path)}", ""))
    return lines


def unit(tuned: Tuned) -> str:
    """What its times are those of."""
    return "micro-step" if tuned.micro_steps else "step"


def saved(tuned: Tuned) -> str:
    """What the whole run has gained, or "" if that is not known."""
    if tuned.saved_s is None:
        return ""
    time = units.duration(abs(tuned.saved_s))
    if tuned.saved_s > 0:
        return f"this run took about {time} less"
    return f"finding that cost about {time} more than this run has gained"
