"""TuneView: the progress of tuning, on stderr. On a terminal, the current trial moves at the bottom
and finished trials stay as rows above it; elsewhere, each finished trial is one line.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.nouns import units
from flatout.nouns.trial import Trial, Verdict
from flatout.reporting import outcome, plain
from flatout.reporting.paragraphs import animated, show, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

COLOURS = {
    Verdict.KEPT: "green",
    Verdict.SLOWER: "yellow",
    Verdict.DIFFERENT: "magenta",
    Verdict.FAILED: "red",
    Verdict.SKIPPED: "dim",
}
PHASES = {"warmup": "warm-up", "window": "measuring"}
NAME, STEP, GAIN, VERDICT = 36, 9, 7, 10
"""Column widths; the reason gets the rest of the line."""


@dataclass
class Running:
    """The current trial."""

    name: str
    began: float
    expected_s: float | None
    phase: str = "starting"
    step: int | None = None
    times_ms: list[float] = field(default_factory=list)


class TuneView:
    """An Observer that draws; a context manager, so that the terminal is always restored."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.animated = animated(self.console)
        self._live: Live | None = None
        self._running: Running | None = None
        self._text = ""
        self._ratios: list[float] = []
        self._skipped: list[Trial] = []
        self._told: set[str] = set()
        """All boosts that were reported as skipped."""
        self._header = False

    def __enter__(self) -> TuneView:
        if self.animated:
            from rich.live import Live

            self._live = Live(
                console=self.console,
                get_renderable=self._status,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,  # this view must not write to stdout, nor catch it
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._running = None
        try:
            self._tell_skipped()
        finally:
            if self._live is not None:
                live, self._live = self._live, None
                try:
                    live.stop()
                finally:
                    # A second Ctrl-C may have come in between: never leave the cursor hidden.
                    self.console.show_cursor(True)

    def phase(self, text: str) -> None:
        """A new part of the work begins."""
        self._tell_skipped()
        self._running, self._text, self._ratios = None, plain.one_line(text), []
        if not self.animated:
            self._print(self._text)

    def started(
        self, tried: str | None, params: dict[str, Any], index: int, expected_s: float | None
    ) -> None:
        """A trial begins."""
        self._tell_skipped()
        name = plain.named(tried, params) if tried else self._text or f"trial {index}"
        self._running = Running(name, time.monotonic(), expected_s)

    def step(self, index: int, phase: str, wall_s: float) -> None:
        """The current trial took a step."""
        running = self._running
        if running is None:
            return
        if phase != running.phase:
            running.phase, running.times_ms = phase, []
        running.step = index
        running.times_ms = [*running.times_ms[-49:], wall_s * 1000]

    def finished(self, trial: Trial) -> None:
        """A trial has its verdict."""
        if trial.verdict is Verdict.SKIPPED and trial.measured is None and trial.tried:
            # Boosts without a trial come in groups: one line for each group. Each process of a
            # short program skips the same ones again.
            name = plain.named(trial.tried, trial.params)
            if name not in self._told:
                self._told.add(name)
                self._skipped.append(trial)
            return
        self._tell_skipped()
        self._running = None
        if not self.animated:
            verdict, reason = _verdict(trial), _reason(trial)
            with_interval = "x [" in reason and trial.verdict is Verdict.SLOWER
            parts = [verdict] if verdict and not reason.startswith(f"{verdict}: ") else []
            if trial.gain is not None and verdict and not with_interval:
                parts.append(units.ratio(trial.gain))
            if trial.measured is not None:
                parts.append(f"{units.milliseconds(trial.measured.step_ms)}/step")
            told = [", ".join(parts)] if parts else []
            self._print(f"{_name(trial)}: {' - '.join([*told, *([reason] if reason else [])])}")
            return
        if not self._header:
            self._header = True
            self._print(_columns("boost", "ms/step", "gain", "verdict"), "dim")
        for line, style in _row(trial, self.console.width):
            self._print(line, style)

    def confirming(self, pair: int, ratio: float | None) -> None:
        """A pair of A/B runs begins, or its ratio is known."""
        self._tell_skipped()
        self._running = None
        if ratio is not None:
            self._ratios.append(ratio)
        so_far = " ".join(units.ratio(value) for value in self._ratios[-8:])
        self._text = f"A/B pair {pair}" + (f"   so far {so_far}" if so_far else "")
        if ratio is not None and not self.animated:
            self._print(f"A/B pair {pair}: {units.ratio(ratio)}")

    def _tell_skipped(self) -> None:
        """Count them; only those that might help elsewhere or in more time are named."""
        skipped, self._skipped = self._skipped, []
        named = [trial for trial in skipped if trial.left]
        others = len(skipped) - len(named)
        if others:
            boosts = "1 boost that does" if others == 1 else f"{others} boosts that do"
            self._print(f"skipped: {boosts} not apply", "dim")
        for trial in named:
            line = f"{plain.named(str(trial.tried), trial.params)}: not tried - {_reason(trial)}"
            self._print(plain.cut(line, self.console.width) if self.animated else line, "dim")

    def _print(self, line: str, style: str = "") -> None:
        show(self.console, styled(line, style))

    def _status(self) -> Text:
        from rich.text import Text

        frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if "utf" in self.console.encoding.lower() else "|/-\\"
        frame = frames[int(time.monotonic() * 8) % len(frames)]
        line = plain.cut(f"{frame} {self._doing()}", self.console.width - 1)
        line = plain.encodable(line, self.console.encoding)
        return Text(line, style="cyan", no_wrap=True, overflow="crop")

    def _doing(self) -> str:
        running = self._running
        if running is None:
            return self._text or "starting"
        elapsed = units.duration(time.monotonic() - running.began)
        if running.expected_s is not None:
            elapsed += f" of ~{units.duration(running.expected_s)}"
        if running.step is None:
            return f"{running.name}: {running.phase}, {elapsed}"
        so_far = units.milliseconds(statistics.median(running.times_ms))
        doing = f"{PHASES.get(running.phase, running.phase)}, step {running.step}"
        return f"{running.name}: {so_far}/step, {doing}, {elapsed}"


def _name(trial: Trial) -> str:
    if outcome.is_untouched(trial):
        return plain.last_line(trial.reason) or "as written"
    whole = "the recipe" if trial.boosts else "as written"
    return plain.named(trial.tried or whole, trial.params if trial.tried else {})


def _verdict(trial: Trial) -> str:
    if outcome.is_untouched(trial):
        return ""
    if trial.verdict is Verdict.SLOWER and not outcome.is_slower(trial):
        return "not kept"
    return str(trial.verdict)


def _reason(trial: Trial) -> str:
    return "" if outcome.is_untouched(trial) else plain.last_line(trial.reason)


def _columns(name: str, step: str, gain: str, verdict: str) -> str:
    line = f"{plain.cut(name, NAME):<{NAME}} {step:>{STEP}} {gain:>{GAIN}}  {verdict:<{VERDICT}}"
    return line.rstrip()


def _row(trial: Trial, width: int) -> list[tuple[str, str]]:
    step = units.milliseconds(trial.measured.step_ms) if trial.measured else "-"
    gain = units.ratio(trial.gain) if trial.gain is not None else "-"
    line = _columns(_name(trial), step, gain, _verdict(trial))
    reason, style = _reason(trial), COLOURS[trial.verdict] if _verdict(trial) else "bold"
    full_row = f"{line:<{NAME + STEP + GAIN + VERDICT + 4}} {reason}".rstrip()
    if len(full_row) <= width:
        return [(full_row, style)]
    if trial.verdict in (Verdict.KEPT, Verdict.SLOWER):  # the numbers suffice; the report has more
        return [(plain.cut(line, width), style)]
    indent = " " * 4
    told = textwrap.wrap(reason, width, initial_indent=indent, subsequent_indent=indent)
    return [(plain.cut(line, width), style), *((part, "dim") for part in told)]
