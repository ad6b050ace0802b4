"""Plain YAML with comments, from mappings and lists, for people to keep and edit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Yaml = str | int | bool | None | Mapping[str, "Entry"] | Sequence["Entry"]
"""A value; None in a mapping or list is omitted."""

PLAIN = re.compile(r"[A-Za-z_/.$~][\w./$@%+~-]*(?::[\w./$@%+~-]+)*")
"""Text that needs no quotes, also for readers of YAML 1.1; no number begins so."""
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"}
NUMBERS = re.compile(r"[-+.]*(?:inf|nan)|\.\d.*|\.", re.IGNORECASE)
LINE = re.compile(r"[\t\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
"""The characters that a line of a block may contain unchanged."""
ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
WIDTH = 96


@dataclass(frozen=True)
class Noted:
    """A value and the reason for it, which is the comment above it."""

    value: Yaml
    why: str


Entry = Yaml | Noted


def documents(documents: Iterable[tuple[str, Mapping[str, Entry]]]) -> str:
    """Several documents in one text, each after its comment."""
    parts = ["\n".join([*comment(why), *_lines(document, "")]) for why, document in documents]
    return "\n---\n".join(parts) + "\n"


def comment(text: str, margin: str = "") -> list[str]:
    """The text as comment lines; its line breaks are kept."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split(" "):
            if line and len(margin) + len(line) + len(word) + 3 > WIDTH:
                lines.append(f"{margin}# {line}")
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(f"{margin}# {line}".rstrip())
    return lines


def _lines(value: Yaml, margin: str) -> list[str]:
    """The lines of a mapping or list."""
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, entry in value.items():
            inner, why = _parts(entry)
            if inner is None:
                continue
            lines += comment(why, margin) if why else []
            lines += _below(f"{margin}{scalar(key)}:", inner, margin + "  ")
        return lines
    assert isinstance(value, Sequence)
    assert not isinstance(value, str)
    for entry in value:
        inner, why = _parts(entry)
        if inner is None:
            continue
        lines += comment(why, margin) if why else []
        lines += _item(inner, margin)
    return lines


def _parts(entry: Entry) -> tuple[Yaml, str]:
    return (entry.value, entry.why) if isinstance(entry, Noted) else (entry, "")


def _item(value: Yaml, margin: str) -> list[str]:
    """An entry of a list; a mapping or list begins on the line of the hyphen."""
    if isinstance(value, str | int | bool | None) or not value:
        return _below(f"{margin}-", value, margin + "  ")
    inner = _lines(value, margin + "  ")
    first = next(place for place, line in enumerate(inner) if not line.lstrip().startswith("#"))
    before = [margin + line.lstrip() for line in inner[:first]]
    return [*before, f"{margin}- {inner[first].lstrip()}", *inner[first + 1 :]]


def _below(head: str, value: Yaml, margin: str) -> list[str]:
    """The value after its head, or on the lines below it."""
    if isinstance(value, str):
        block = _block(value, margin)
        return [f"{head} {block[0]}", *block[1:]] if block else [f"{head} {scalar(value)}"]
    if isinstance(value, bool | int) or value is None:
        return [f"{head} {json.dumps(value)}"]
    if not value:
        return [f"{head} {{}}" if isinstance(value, Mapping) else f"{head} []"]
    return [head, *_lines(value, margin)]


def _block(text: str, margin: str) -> list[str]:
    """Several lines unchanged, as a block; empty if a block cannot hold them."""
    lines = text.removesuffix("\n").split("\n")
    fits = all(LINE.fullmatch(line) for line in lines) and not text.endswith("\n\n")
    if len(lines) < 2 or not fits or not lines[0] or lines[0][0] in " \t":
        return []
    ending = "|" if text.endswith("\n") else "|-"
    return [ending, *(f"{margin}{line}" if line else "" for line in lines)]


def scalar(text: str) -> str:
    """The text, in quotes if it would otherwise be read as something else."""
    plain = PLAIN.fullmatch(text) and not NUMBERS.fullmatch(text) and text.lower() not in WORDS
    if plain:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
