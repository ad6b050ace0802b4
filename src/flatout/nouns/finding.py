"""Finding: one diagnosed problem, with its evidence and its cure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from flatout.nouns import amdahl

LARGEST = 5.0
"""Above this ratio a gain is reported only as an upper bound."""


class Severity(enum.StrEnum):
    """How much it matters, the worst first."""

    ERROR = "error"
    """Something does not work: no GPU, a broken import, hardware errors."""
    WARNING = "warning"
    """It works, but slower or less safely than it could."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNCHECKED = "unchecked"
    """The check itself failed: an error in flatout, which is reported."""


class Sentence(str):
    """A line of a Cure that is a remark, not a command: a terminal may wrap it."""

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
    """How it was computed, in numbers."""
    low: float | None = None
    """The ratio if less is saved and something else limits the step, or None if unknown."""
    high: float | None = None
    """The ratio if more is saved than computed."""

    @property
    def bounds(self) -> bool:
        """Whether the ratio is only a bound, because the rest of the step is unknown."""
        return self.ratio > LARGEST

    @property
    def saved(self) -> float:
        """Share of the step that is saved; 0 if the ratio says nothing."""
        is_predicted = self.ratio > 0 and math.isfinite(self.ratio)
        return amdahl.saved(1.0, self.ratio) if is_predicted else 0.0


@dataclass(frozen=True)
class Finding:
    """One problem. `code` and `id` name the check that found it."""

    code: str
    """ENV012: stable, one page of documentation each."""
    id: str
    """The check's file name with hyphens: nvidia-driver-missing."""
    severity: Severity
    title: str
    """The problem in one line of at most 100 characters, naming its subject."""
    evidence: str
    """What was measured or read, in numbers and names: enough to believe it."""
    cure: Cure
    where: str | None = None
    """file:line in the user's code, or None."""
    boost: str | None = None
    """The boost that cures it without an edit, or None."""
    gain: Gain | None = None
    """The predicted gain, or None if not predicted."""
