"""What a cell of a notebook shows of its run: one line while it trains, a card at the end.

The card has no style sheet and no script, so that it looks the same in every front end. Its colours
are those of the page around it, light or dark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatout.nouns.run_end import RunEnd
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.reporting import html, live, outcome, plain, terminal
from flatout.reporting.harmless import warn


class CellOutput:
    """The output of one run, which changes in place."""

    def __init__(self, named: Callable[[str], str]) -> None:
        """named: gives a text with the names of cells in place of their files."""
        self._named = named
        self._handle: Any = None
        self._on: dict[str, None] = {}

    def decision(self, trial: Trial) -> None:
        """Show the latest decision, and what is on."""
        for boost in trial.boosts if trial.tried is None else (trial.tried,):
            if trial.verdict is Verdict.KEPT:
                self._on[boost] = None
            else:
                self._on.pop(boost, None)
        if live.is_shown(trial):
            self.say(f"last: {live.decision_words(trial)}")

    def say(self, line: str) -> None:
        """Show what is on, and this line in place of the one before."""
        on = f"on: {', '.join(self._on)}; " if self._on else ""
        self._show({"text/plain": f"flatout: {on}{line}"})

    def ended(self, end: RunEnd, tuned: Tuned | None, lines: Sequence[str]) -> None:
        """Show the result; tuned: where it was tuned. lines: what else there is to say."""
        said = [line for line, _ in live.closing_lines(tuned)] if tuned is not None else []
        text = [*said, *lines, terminal.run_words(end)]
        self._show(
            {
                "text/plain": "\n".join(f"flatout: {line}" for line in text),
                "text/html": card(end, tuned, lines),
            }
        )
        for fault in end.faults:
            warn(f"error inside flatout, your program is not affected: {fault}")

    def _show(self, texts: dict[str, str]) -> None:
        bundle = {kind: self._named(text) for kind, text in texts.items()}
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
            return
        display = sys.modules["IPython.display"].display  # loaded by the kernel
        self._handle = display(bundle, raw=True, display_id=True)


def card(end: RunEnd, tuned: Tuned | None, lines: Sequence[str] = ()) -> str:
    """The card, as a piece of HTML; tuned: None where nothing was measured."""
    faster = tuned is not None and tuned.best is not None
    head = outcome.headline(tuned) if tuned is not None else None
    if tuned is None:
        said = terminal.run_words(end)
    else:
        said = live.saved(tuned) if faster else live.closing_lines(tuned)[0][0]
    report = tuned.report_path if tuned is not None else None
    from_here = ""
    if report is not None:
        file, here = Path(report), Path.cwd()
        from_here = str(file.relative_to(here) if file.is_relative_to(here) else file)
    kept: Sequence[Any] = tuned.plan.boosts if tuned is not None and tuned.plan is not None else ()
    speedup, learns = None, ""
    if tuned is not None and tuned.best is not None:
        speedup = outcome.quotient(tuned.baseline.step_ms, tuned.best.step_ms)
        learns = outcome.learning_words(outcome.guard_of_plan(tuned), every_figure=False)
    return (
        html.templates(times=html.times)
        .get_template("card.html.j2")
        .render(
            speedup=speedup,
            said=plain.one_line(said),
            unit=live.unit(tuned) if tuned is not None else "",
            bars=html.before_and_after(head, tuned)[:1] if faster and head and tuned else [],
            on=[plain.named(boost.id, boost.params) for boost in kept] or end.engaged,
            guard=learns,
            ran=terminal.run_words(end) if tuned is not None else "",
            notes=[plain.one_line(note) for note in tuned.notes] if tuned is not None else [],
            lines=lines,
            plan=plain.one_line(tuned.plan_path) if tuned and tuned.plan_path else "",
            report=from_here,
            link=html.beside(report, Path.cwd()) if report else None,
        )
    )
