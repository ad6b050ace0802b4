"""Explained: what an error text means."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.signature import BetterLog, Confidence, Signature, Wording


@dataclass(frozen=True)
class Evidence:
    """The lines by which something was recognised, and where they stand."""

    text: str
    """Without prefixes and escape sequences."""
    line: int
    """Counted from 1."""
    source: str | None = None
    """The file, or None if the text did not come from a file."""
    rank: int | None = None
    time_s: float | None = None
    """Seconds from a day before the year began, less than a day where the log has no date; None:
    the log has no times."""


@dataclass(frozen=True)
class FilledStep:
    """One step of a cure, with what was captured written into it."""

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
    """What applies on this machine first, what does not apply last."""
    captured: dict[str, str] = field(default_factory=dict)
    count: int = 1
    """How often it matches."""
    ranks: tuple[int, ...] = ()
    """All that reported it, in the order of their reports."""
    consequence_of: str | None = None
    """Id of the match that this one follows from."""

    @property
    def id(self) -> str:
        return self.signature.id


@dataclass(frozen=True)
class Explained:
    """The answer about one text, or about all files of a folder."""

    matches: tuple[Match, ...]
    """Best first: the root cause, other errors, then what follows from them, then harmless ones."""
    better_log: tuple[BetterLog, ...] = ()
    """Where a failure was not recognised: what to try for a better log."""
    sources: tuple[str, ...] = ()
    """Files that were read."""
    bytes_read: int = 0
    resembling: tuple[Match, ...] = ()
    """Where nothing matches: known errors whose message is like one in the text, the likest first.
    Their confidence is low, and they are no answer."""
    observations: tuple[Wording, ...] = ()
    """What the run itself recorded of its end, where it was started by flatout."""

    @property
    def recognised(self) -> bool:
        """The text is explained: the failure in it, or that it holds none."""
        return bool(self.matches) and not self.better_log
