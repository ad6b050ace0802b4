"""Signature: how an error is recognised, with its cause and cure, in every language we speak."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LANGUAGES = ("en", "zh")
"""English and Chinese."""


class Role(enum.StrEnum):
    """What the message is to the program that printed it, the weightiest first."""

    ERROR = "error"
    """It ends the program, or says why it ended."""
    ECHO = "echo"
    """It only reports that another process, rank or thread has ended, or no longer answers."""
    WARNING = "warning"
    """The program goes on, and something is really wrong or lost."""
    HARMLESS = "harmless"
    """It looks like trouble and is none."""


class Confidence(enum.StrEnum):
    """How sure an answer is, the surest first."""

    HIGH = "high"
    """The text itself determines this cause: no other prints it."""
    LIKELY = "likely"
    """Few causes print this, and it is the likeliest."""
    LOW = "low"
    """The text only shows that something of this kind failed, or resembles a known message."""


@dataclass(frozen=True)
class Wording:
    """One text in every language.

    `{name}` stands for what the pattern's group of that name captured, `{name|other}` for that or,
    where it captured nothing, for `other`; `{name!cuda}` and `{name!cudnn}` write the number of a
    version as a version: 12040 as 12.4, 90100 as 9.1.0.
    """

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        """The text in one of LANGUAGES."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class CureStep:
    """One thing to do. Steps stand in the order of how likely they cure it on any machine."""

    text: Wording
    commands: tuple[str, ...] = ()
    """Lines for a shell, with the same placeholders as a Wording."""
    when: str | None = None
    """Name of the fact about this machine under which the step applies, or None for any."""
    if_text: str | None = None
    """The step applies where this pattern is found near the error."""


@dataclass(frozen=True)
class Signature:
    """One cause, recognised by its message.

    A pattern is a regular expression (RE2's) without regard to case; a space in it stands for any
    run of blanks and line ends, and a quote for any quote or none.
    """

    id: str
    family: str
    """Name of the file that holds it."""
    title: Wording
    """The error in one line, as one would say it to a colleague."""
    cause: Wording
    cure: tuple[CureStep, ...]
    any: tuple[str, ...]
    """The message itself: one of these is found, and that place is the evidence."""
    all: tuple[str, ...] = ()
    """Each of these is found near it."""
    none: tuple[str, ...] = ()
    """None of these is found near it."""
    captures: tuple[str, ...] = ()
    """Patterns that need not be found near it; where they are, their groups fill the texts."""
    needs: tuple[str, ...] = ()
    """Names of conditions on what was captured: they must hold."""
    near: int = 40
    """Lines before and after the message that count as near; 0: its own line."""
    role: Role = Role.ERROR
    specificity: int = 5
    """1 to 9: which of several that match one place stands above the others. Up to 3: it only shows
    that something of this kind failed."""
    confidence: Confidence = Confidence.LIKELY
    """How often this is the cause where the message is printed. HIGH: at least 199 times in 200."""
    leads_to: tuple[str, ...] = ()
    """Signatures that are consequences of this one where both are found."""
    sources: tuple[str, ...] = ()
    """Addresses: documentation, source, or a thread that established the cause."""
    log: str = ""
    """A log as the real program prints it, in which this signature alone explains the failure."""


@dataclass(frozen=True)
class Family:
    """Signatures of one kind of trouble."""

    id: str
    title: Wording
    signatures: tuple[Signature, ...]


@dataclass(frozen=True)
class BetterLog:
    """What to try for a better log of an error of one kind that was not recognised."""

    id: str
    text: Wording
    commands: tuple[str, ...]
    any: tuple[str, ...]
    """Found in the text: it is of this kind. Empty: of every kind."""
