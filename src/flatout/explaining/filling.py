"""Fill the texts and commands of a signature with what was captured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from flatout.knowledge.signatures import PLACEHOLDER
from flatout.nouns.signature import Wording

NOTHING = "\0"
"""Marks a place without captured text or alternative until the blanks around it are removed."""
_AROUND_NOTHING = re.compile(
    r"(?<=[一-鿿]) \0 (?=[一-鿿])| ?\(\0\)| \0(?=[ ,.;:)]|$)|(?:^|(?<=\())\0 "
)
INSTEAD = "\1"
"""Marks both ends of an alternative until the blanks that only captured text needs are gone."""
_AROUND_INSTEAD = re.compile("(?<=[一-鿿，。：；]) \1(?=[一-鿿])|(?<=[一-鿿])\1 (?=[一-鿿])|\1")
"""Between Chinese letters, blanks set off only a number or a Latin word."""
_PLAIN = re.compile(r"[\w.:/@%+=,-]*")
"""Captured text of these characters has no special meaning in any shell."""


def wording(texts: Wording, captured: Mapping[str, str]) -> Wording:
    return Wording(text(texts.en, captured), text(texts.zh, captured))


def text(template: str, captured: Mapping[str, str]) -> str:
    """`template` with its placeholders filled, with the alternative if nothing was captured."""
    filled = _AROUND_NOTHING.sub("", _filled(template, captured, False, NOTHING))
    return _AROUND_INSTEAD.sub("", filled).replace(NOTHING, "")


def command(template: str, captured: Mapping[str, str]) -> str:
    """The same for a line pasted into a shell: a log cannot inject a command."""
    return _filled(template, captured, True, "")


def version(form: str | None, number: str) -> str:
    """The number of a version as a version: cuda 12040 -> 12.4; cudnn 8902 -> 8.9.2."""
    if not number.isdecimal() or form is None:
        return number
    value = int(number)
    if form == "cuda" and value >= 1000:
        return f"{value // 1000}.{value % 1000 // 10}"
    if form == "cudnn" and value >= 10_000:
        return f"{value // 10_000}.{value % 10_000 // 100}.{value % 100}"
    if form == "cudnn" and value >= 1000:
        return f"{value // 1000}.{value % 1000 // 100}.{value % 100}"
    return number


def _filled(template: str, captured: Mapping[str, str], quoted: bool, nothing: str) -> str:
    def fill(match: re.Match[str]) -> str:
        value = captured.get(match["name"])
        if value is None:
            if match["other"] is None:
                return match["name"].upper()
            instead = match["other"] if quoted else f"{INSTEAD}{match['other']}{INSTEAD}"
            return instead if match["other"] else nothing
        value = version(match["form"], value)
        return shlex.quote(value) if quoted and not _PLAIN.fullmatch(value) else value

    return PLACEHOLDER.sub(fill, template)
