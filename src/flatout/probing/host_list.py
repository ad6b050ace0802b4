"""Slurm's notation for many host names: n[01-03,7],login."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.nouns.errors import UserError

MAX_HOSTS = 100_000
PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expanded(text: str) -> list[str]:
    """All names, in order. Raises UserError if the text is no such list."""
    names: list[str] = []
    rest = text.strip()
    while rest:
        part = PART.match(rest)
        if part is None or not (part.end() == len(rest) or rest[part.end()] == ","):
            raise _wrong(text)
        for name in _names(part[0], text):
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise _wrong(text)
        rest = rest[part.end() + 1 :]
    return names


def _names(part: str, text: str) -> Iterator[str]:
    """The names of one part, which may have several pairs of brackets."""
    brackets = BRACKETS.search(part)
    if brackets is None:
        yield part
        return
    for number in _numbers(brackets[1], text):
        yield from _names(part[: brackets.start()] + number + part[brackets.end() :], text)


def _numbers(inside: str, text: str) -> Iterator[str]:
    for piece in inside.split(","):
        span = RANGE.fullmatch(piece.strip())
        if span is None:
            raise _wrong(text)
        first, last = span[1], span[2] or span[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _wrong(text)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _wrong(text: str) -> UserError:
    shown = text if len(text) < 80 else text[:77] + "..."
    return UserError(f"{shown} is no list of nodes as Slurm writes it", "--nodes 1")
