"""The one door to RE2, whose patterns take time in proportion to the text, whatever it holds."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import re2

MEMORY_BYTES = 128 << 20
"""For the states of one pattern; a text that needs more is searched more slowly, not wrongly."""
_NAMED = re.compile(r"\(\?P<[a-z_0-9]+>")


class PatternSet:
    """Many patterns, asked at once which of them are found in a short text."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self._set = re2.Set.SearchSet(_options())
        for pattern in patterns:
            self._set.Add(tolerant(pattern).encode())
        self._set.Compile()

    def search(self, text: bytes) -> list[int]:
        """Places in `patterns` of those that are found in `text`, in order."""
        found = self._set.Match(text)
        if found is not None:
            return sorted(found)
        # None is found, or the memory for its states did not suffice.
        return [place for place, item in enumerate(self.patterns) if compiled(item).search(text)]


@cache
def compiled(pattern: str) -> Any:
    """One pattern, made tolerant, over UTF-8. Raises ValueError where it is malformed."""
    return _compile(tolerant(pattern), pattern)


@cache
def any_of(patterns: tuple[str, ...]) -> Any:
    """One pattern that is found where any of `patterns` is; it captures nothing."""
    parts = (_NAMED.sub("(?:", tolerant(pattern)) for pattern in patterns)
    return _compile("|".join(f"(?:{part})" for part in parts), "all together")


def tolerant(pattern: str) -> str:
    """`pattern` with any run of blanks and line ends for a space, any quote or none for a quote.

    Logs are wrapped by terminals and forums, and their quotes are changed on the way.
    """
    made, in_class, escaped = [], False, False
    for letter in pattern:
        if escaped or in_class:
            made.append(letter)
        elif letter == " ":
            made.append(r"\s+")
        elif letter in "'\"`":
            made.append("['\"`]*")
        else:
            made.append(letter)
        if not escaped:
            in_class = (in_class or letter == "[") and letter != "]"
        escaped = letter == "\\" and not escaped
    return "".join(made)


def _compile(pattern: str, name: str) -> Any:
    try:
        return re2._Regexp(pattern.encode(), _options())
    except re2.error as problem:
        raise ValueError(f"pattern {name!r}: {problem}") from problem


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.case_sensitive = False
    options.log_errors = False
    return options
