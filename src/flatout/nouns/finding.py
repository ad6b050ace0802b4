"""Finding: one diagnosed problem, with its evidence and its cure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from flatout.nouns import amdahl

LARGEST = 5.0
"""The ratio above which a gain is only said to be at most that large."""


class Severity(enum.StrEnum):
    """How much it matters, the worst first."""

    ERROR = "error"
    """Something does not work: no GPU, a broken import, errors of the hardware."""
    WARNING = "warning"
    """It works, but slower or less safely than it could."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNCHECKED = "unchecked"
    """The check itself failed: an error in flatout, reported and not hidden."""


class Sentence(str):
    """A line of a Cure that is a remark to read: a terminal may wrap it, unlike a command."""

    __slots__ = ()


@dataclass(frozen=True)
class Cure:
    """What to do about it."""

    text: str
    """One to three sentences: what the commands do, and what to watch."""
    commands: tuple[str, ...] = ()
    """Exact lines for this machine's shell, in order; a line that starts with # is a remark."""


@dataclass(frozen=True)
class Gain:
    """What a cure is predicted to gain."""

    ratio: float
    """Step now / step afterwards: 1.5 means one and a half times as fast."""
    reason: str
    """How that was computed, in numbers."""
    low: float | None = None
    """The ratio if less is saved than computed, and something else binds; None: not known."""
    high: float | None = None
    """The ratio if more is saved than computed."""

    @property
    def bounds(self) -> bool:
        """Whether the ratio is a bound and no prediction: what else a step needs is not known."""
        return self.ratio > LARGEST

    @property
    def saved(self) -> float:
        """Share of the step that is saved; 0 where the ratio says nothing."""
        is_predicted = self.ratio > 0 and math.isfinite(self.ratio)
        return amdahl.saved(1.0, self.ratio) if is_predicted else 0.0


@dataclass(frozen=True)
class Finding:
    """One problem. `code` and `id` name the check that found it."""

    code: str
    """ENV014: stable, one page of documentation each."""
    id: str
    """The check's file name with hyphens: nvidia-driver-missing."""
    severity: Severity
    title: str
    """The problem in one line of at most 100 characters, with the name of what it is about."""
    evidence: str
    """What was measured or read, in numbers and names: enough to believe it."""
    cure: Cure
    where: str | None = None
    """file:line in the user's code, where there is one."""
    boost: str | None = None
    """The boost that cures it without an edit, where there is one."""
    gain: Gain | None = None
    """The predicted gain, or None if not predicted."""
