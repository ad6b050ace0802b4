"""Explained: what an error text means."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.signature import BetterLog, Confidence, Signature, Wording


@dataclass(frozen=True)
class Evidence:
    """The lines by which something was recognised, and where they are."""

    text: str
    """The lines without prefixes and escape sequences."""
    line: int
    """Counted from 1."""
    source: str | None = None
    """The file, or None if the text did not come from a file."""
    rank: int | None = None
    time_s: float | None = None
    """Seconds since one day before the year began, or None if the log has no times. Less than a
    day if the log has no date."""


@dataclass(frozen=True)
class FilledStep:
    """One step of a cure, with the captured values filled in."""

    text: Wording
    commands: tuple[str, ...] = ()
    applies: bool | None = None
    """Whether it applies on this machine, or None if unknown or if it applies everywhere."""


@dataclass(frozen=True)
class Match:
    """One signature that matches."""

    signature: Signature
    confidence: Confidence
    evidence: Evidence
    title: Wording
    cause: Wording
    cure: tuple[FilledStep, ...]
    """Steps that apply on this machine first, those that do not apply last."""
    captured: dict[str, str] = field(default_factory=dict)
    count: int = 1
    """How often it matches."""
    ranks: tuple[int, ...] = ()
    """The ranks that reported it, in the order of their reports."""
    consequence_of: str | None = None
    """Id of the match that this one follows from, or None."""

    @property
    def id(self) -> str:
        return self.signature.id


@dataclass(frozen=True)
class Explained:
    """The answer about one text, or about all files of a folder."""

    matches: tuple[Match, ...]
    """Best first: the root cause, other errors, then what follows from them, then harmless ones."""
    better_log: tuple[BetterLog, ...] = ()
    """What to try for a better log, if a failure was not recognised."""
    sources: tuple[str, ...] = ()
    """Files that were read."""
    bytes_read: int = 0
    observations: tuple[Wording, ...] = ()
    """What the run recorded about its own end, if flatout started it."""

    @property
    def recognised(self) -> bool:
        """Whether the text is explained: its failure was recognised, or it contains none."""
        return bool(self.matches) and not self.better_log
