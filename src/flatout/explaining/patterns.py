"""The only access to RE2, whose patterns take linear time on any text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import re2

MEMORY_BYTES = 128 << 20
"""Memory for one pattern's states; a text that needs more is searched slowly, not wrongly."""
_BLANKS = r"\s+"
COUNTED = 3
"""Repetitions up to this many are always counted."""
_REPETITION = re.compile(r"(?<!\\)\{(\d*),(\d+)\}")
LEAST = 8
"""Fewest characters of a pattern that are left."""
_ANY_WORD = re.compile(
    r"(?:\\b|(?:\((?:\?:|\?P<\w+>)?)?(?:\\[wsSd]|\[[^\]]*\])(?:[+*]\??)?\)?)+", re.ASCII
)
_OPENED = re.compile(r"(?<!\\)\(")
_CLOSED = re.compile(r"(?<!\\)\)")
_NAMED = re.compile(r"\(\?P<[a-z_0-9]+>")


class PatternSet:
    """Many patterns, searched at once for those that a short text may contain.

    They are loosened: none is missed, but some that are named may not match.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self._set = re2.Set.SearchSet(_options())
        for pattern in patterns:
            self._set.Add(loosened(tolerant(pattern)).encode())
        self._set.Compile()

    def search(self, text: bytes) -> list[int]:
        """Indexes in `patterns` of those that may be found in `text`, in order."""
        places = self._set.Match(text)
        if places is not None:
            return sorted(places)
        # None was found, or the memory for the states did not suffice.
        return [
            place for place, pattern in enumerate(self.patterns) if compiled(pattern).search(text)
        ]


@cache
def compiled(pattern: str) -> Any:
    """One pattern, made tolerant, over bytes. Raises ValueError if it is malformed."""
    return _compile(tolerant(pattern), pattern)


@cache
def any_of(patterns: tuple[str, ...]) -> Any:
    """One loosened pattern that is found wherever any of `patterns` is; it captures nothing."""
    parts = (_NAMED.sub("(?:", loosened(tolerant(pattern))) for pattern in patterns)
    return _compile("|".join(f"(?:{part})" for part in parts), "all together", captures=False)


def tolerant(pattern: str) -> str:
    """`pattern` in which a space matches blanks and line ends, and a quote any quote or none.

    Terminals and forums wrap logs and change their quotes.
    """
    pieces: list[str] = []
    in_class = escaped = False
    for letter in pattern:
        plain = not (escaped or in_class)
        if plain and letter in "?*+" and pieces and pieces[-1] == _BLANKS:
            pieces[-1] = r"\s*" if letter in "?*" else _BLANKS
        elif plain and letter == "{" and pieces and pieces[-1] == _BLANKS:
            pieces[-1] = f"(?:{_BLANKS})"
            pieces.append(letter)
        elif plain and letter == " ":
            pieces.append(_BLANKS)
        elif plain and letter in "'\"`":
            pieces.append("['\"`]*")
        else:
            pieces.append(letter)
        if not escaped:
            in_class = (in_class or letter == "[") and letter != "]"
        escaped = letter == "\\" and not escaped
    return "".join(pieces)


def loosened(pattern: str) -> str:
    """`pattern` without limits on repetition or a beginning that fits any word: it finds more.

    Hundreds of patterns that count to 200, or can begin at any word, would need too many states.
    """
    unlimited = _REPETITION.sub(_without_limit, pattern)
    head = _ANY_WORD.match(unlimited)
    tail = unlimited[head.end() :] if head is not None else unlimited
    # Where every group is closed, the removed beginning opened or closed none.
    balanced = len(_OPENED.findall(tail)) == len(_CLOSED.findall(tail))
    return tail if len(tail) >= LEAST and balanced else unlimited


def _without_limit(match: re.Match[str]) -> str:
    least, most = int(match[1] or 0), int(match[2])
    return match[0] if most <= COUNTED else "*" if least == 0 else "+"


def _compile(pattern: str, name: str, captures: bool = True) -> Any:
    try:
        return re2._Regexp(pattern.encode(), _options(captures))
    except re2.error as problem:
        raise ValueError(f"pattern {name!r}: {problem}") from problem


def _options(captures: bool = True) -> re2.Options:
    options = re2.Options()
    # Bytes, not characters: programs are a tenth as large, and a log may contain any byte.
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = not captures
    options.max_mem = MEMORY_BYTES
    options.case_sensitive = False
    options.log_errors = False
    return options
