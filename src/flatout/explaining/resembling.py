"""Known errors with a message like an unmatched one: offered, but never as an answer.

Two messages are alike if they share words that few messages have, and these cover enough of both
the known and the new message. A program's own exception shares no such words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from flatout.explaining import described, ending
from flatout.explaining.patterns import compiled
from flatout.nouns.signature import Role, Signature

AT_MOST = 2
"""Most known errors that are named."""
MESSAGES = 3
"""Errors of one text that are compared, starting at its end."""
SHORT_LINES = 4
"""A text of at most this many lines is itself a message, even without an exception's name."""
KNOWN_COVERED = 0.55
"""Least share of the known message's weight that is found again."""
NEW_COVERED = 0.5
"""The same for the new message."""
RARE_WORDS = 3
"""Fewest shared words that few known messages have."""
RARE = 24
"""Most signatures that contain a rare word."""
_WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,}")
_VALUE = re.compile(
    r"""0x[0-9a-f]+|/[\w./-]+|[A-Z]:\\[\w.\\-]+|https?://\S+|['"`][^'"`\n]{0,120}['"`]|\d[\w.]*"""
)
"""Values that differ between two prints of one message."""
_ENDING = re.compile(r"(?:ing|ed|es|s|e|ly)$")
STEM = 4
"""Longest word, in letters, that keeps its ending."""
_OF_PYTHON = re.compile(
    r"invalid literal for|could not convert string|division by zero|values to unpack|"
    r"object is not (?:callable|iterable|subscriptable|an iterator)|has no attribute|"
    r"unsupported operand|positional arguments?|keyword arguments?|out of range|is not defined|"
    r"KeyError|must be (?:str|real number|an integer)"
)
"""Python's own words for ordinary mistakes in any program."""
_COMMON = {
    "the", "and", "for", "with", "was", "are", "not", "but", "that", "this", "from", "have", "has",
    "you", "your", "error", "runtimeerror", "valueerror", "typeerror", "exception", "please",
    "got", "given", "can", "could", "should", "must", "when", "which", "all", "any", "its", "use",
}  # fmt: skip


@dataclass(frozen=True)
class Likeness:
    """A known error, the shared part of both messages (0 to 1), and the text's own message."""

    signature: Signature
    share: float
    message: str = ""


@dataclass(frozen=True)
class Messages:
    """The messages of signatures, by their words."""

    signatures: tuple[Signature, ...]

    @cached_property
    def known(self) -> tuple[tuple[Signature, frozenset[str]], ...]:
        """The words of each message of each error."""
        return tuple(
            (signature, words(message))
            for signature in self.signatures
            if signature.role is not Role.HARMLESS
            for message in (*described.message(signature), *_matched(signature))
        )

    @cached_property
    def owners(self) -> Counter[str]:
        """How many signatures have a word in a message."""
        pairs = {(word, entry.id) for entry, message in self.known for word in message}
        return Counter(word for word, _ in pairs)

    def weight(self, some: Iterable[str]) -> float:
        """The total weight of words: rarer words weigh more, common ones 0."""
        return sum(math.log(1 + len(self.signatures) / (1 + self.owners[word])) for word in some)

    def likest(self, message: str) -> list[Likeness]:
        """Known errors that `message` resembles."""
        new = words(message)
        best: dict[str, Likeness] = {}
        for signature, known in self.known:
            likeness = self._likeness(signature, known, new)
            if likeness is not None and likeness.share > best.get(signature.id, NOTHING).share:
                best[signature.id] = likeness
        return list(best.values())

    def _likeness(
        self, signature: Signature, known: frozenset[str], new: frozenset[str]
    ) -> Likeness | None:
        shared = known & new
        if sum(1 for word in shared if self.owners[word] <= RARE) < RARE_WORDS:
            return None
        weight = self.weight(shared)
        of_known, of_new = weight / self.weight(known), weight / self.weight(new)
        if of_known < KNOWN_COVERED or of_new < NEW_COVERED:
            return None
        return Likeness(signature, math.sqrt(of_known * of_new))


NOTHING = Likeness(Signature.__new__(Signature), 0.0)


def words(message: str) -> frozenset[str]:
    """The words that every print of a message has: no values, paths or quoted names."""
    plain = _VALUE.sub(" ", message)
    found = {word.lower() for word in _WORD.findall(plain)} - _COMMON
    return frozenset(_ENDING.sub("", word) if len(word) > STEM else word for word in found)


def _matched(signature: Signature) -> list[str]:
    """The parts of its log that its patterns match."""
    text = signature.log.encode()
    places = (compiled(pattern).search(text) for pattern in signature.any)
    spans = (place.group().decode("utf-8", "replace") for place in places if place is not None)
    return [span for span in spans if len(words(span)) >= RARE_WORDS]


@cache
def messages(signatures: tuple[Signature, ...]) -> Messages:
    """The index, made when first needed."""
    return Messages(signatures)


def resembling(text: bytes, signatures: tuple[Signature, ...]) -> list[Likeness]:
    """Known errors that the errors in `text` resemble, the most similar first."""
    index = messages(signatures)
    best: dict[str, Likeness] = {}
    for message in _asked(text):
        for likeness in index.likest(message):
            if likeness.share > best.get(likeness.signature.id, NOTHING).share:
                best[likeness.signature.id] = replace(likeness, message=message.splitlines()[0])
    return sorted(best.values(), key=_place)[:AT_MOST]


def _place(likeness: Likeness) -> tuple[float, int]:
    """The sort key: of two about equally similar ones, the more general comes first."""
    return -round(likeness.share, 1), likeness.signature.specificity


def _asked(text: bytes) -> Sequence[str]:
    errors = list(ending.errors(text))[:MESSAGES]
    if errors:
        return [error for error in errors if not _OF_PYTHON.search(error)]
    rows = text.decode("utf-8", "replace").strip().splitlines()
    return [" ".join(rows)] if len(rows) <= SHORT_LINES else []
