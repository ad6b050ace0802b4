"""Signature: how an error is recognised, with its cause and cure in every supported language."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LANGUAGES = ("en", "zh")
"""English and Chinese."""


class Role(enum.StrEnum):
    """What the message means for the program that printed it, the most serious first."""

    ERROR = "error"
    """It ends the program, or says why it ended."""
    ECHO = "echo"
    """It only reports that another process, rank or thread ended or no longer answers."""
    WARNING = "warning"
    """The program continues, but something is really wrong or lost."""
    HARMLESS = "harmless"
    """It looks like trouble but is not."""


class Confidence(enum.StrEnum):
    """How sure an answer is, the surest first."""

    HIGH = "high"
    """The text determines this cause: no other prints it."""
    LIKELY = "likely"
    """Few causes print this; it is the likeliest."""
    LOW = "low"
    """The text only shows that something of this kind failed."""


@dataclass(frozen=True)
class Wording:
    """One text in every language.

    `{name}` stands for what the pattern's group of that name captured; `{name|other}` for that, or
    `other` if it captured nothing. `{name!cuda}` and `{name!cudnn}` write the number of a version
    as a version: 12040 as 12.4, 90100 as 9.1.0.
    """

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        """The text in one of LANGUAGES."""
        return self.zh if language == "zh" else self.en

    def filled(self, **values: object) -> Wording:
        """The same with values in place of the names in braces."""
        return Wording(self.en.format(**values), self.zh.format(**values))


@dataclass(frozen=True)
class CureStep:
    """One thing to do. Steps are ordered by how likely they help on any machine."""

    text: Wording
    commands: tuple[str, ...] = ()
    """Lines for a shell, with the same placeholders as a Wording."""
    when: str | None = None
    """Name of the machine fact under which the step applies, or None if it always applies."""
    if_text: str | None = None
    """The step applies if this pattern is found near the error."""


@dataclass(frozen=True)
class Signature:
    """One cause, recognised by its message.

    A pattern is a case-insensitive regular expression (RE2). A space in it matches any run of
    blanks and line ends, and a quote matches any quote or none.
    """

    id: str
    family: str
    """Name of the file that holds it."""
    title: Wording
    """The error in one line, as told to a colleague."""
    cause: Wording
    cure: tuple[CureStep, ...]
    any: tuple[str, ...]
    """The message itself: one of these must be found, and its place is the evidence."""
    all: tuple[str, ...] = ()
    """Each of these must be found near it."""
    none: tuple[str, ...] = ()
    """None of these may be found near it."""
    captures: tuple[str, ...] = ()
    """Optional patterns near it, whose groups fill the texts."""
    needs: tuple[str, ...] = ()
    """Names of conditions that the captured values must meet."""
    near: int = 40
    """Lines before and after the message that count as near; 0 for its own line only."""
    role: Role = Role.ERROR
    specificity: int = 5
    """1 to 9: of several that match one place, the highest wins. Up to 3, it only shows that
    something of this kind failed."""
    confidence: Confidence = Confidence.LIKELY
    """How often this causes the message. HIGH: at least 199 times in 200."""
    leads_to: tuple[str, ...] = ()
    """Signatures that are consequences of this one if both are found."""
    sources: tuple[str, ...] = ()
    """Addresses of documentation, source, or a thread that established the cause."""
    log: str = ""
    """A log of the real program in which this signature alone explains the failure."""


@dataclass(frozen=True)
class Family:
    """Signatures of one kind of trouble."""

    id: str
    title: Wording
    signatures: tuple[Signature, ...]


@dataclass(frozen=True)
class BetterLog:
    """What to try for a better log of an unrecognised error of one kind."""

    id: str
    text: Wording
    commands: tuple[str, ...]
    any: tuple[str, ...]
    """Patterns that show this kind of error; empty for every kind."""
