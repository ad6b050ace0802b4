"""Foreign text made safe to print: no escape sequence from a program reaches the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.nouns import escapes
from flatout.nouns.typed import typed


def lines(text: str) -> list[str]:
    """The printable lines of `text` without escape sequences, control or direction characters."""
    text_only = escapes.removed(text).expandtabs(4)
    printable = (
        "".join(letter if letter.isprintable() else " " for letter in line)
        for line in text_only.splitlines()
    )
    return [line.rstrip() for line in printable]


def one_line(text: str) -> str:
    """All of `text` in one line."""
    return " ".join(" ".join(lines(text)).split())


def last_line(text: str) -> str:
    """The last line with content: for a traceback, the error itself."""
    return next((one_line(line) for line in reversed(lines(text)) if line.strip()), "")


def cut(text: str, width: int) -> str:
    """`text` in at most `width` characters."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."[:width]


def named(boost: str, params: dict[str, Any]) -> str:
    """A boost with its parameters: "compile mode=default"."""
    values = " ".join(f"{key}={value}" for key, value in params.items())
    return one_line(f"{boost} {values}")


def command_line(command: Sequence[str]) -> str:
    """The command as typed on this system."""
    return " ".join(lines(typed(command)))


def encodable(text: str, encoding: str) -> str:
    """`text` in the same length, with "?" for what a terminal of this encoding cannot show."""
    return text.encode(encoding, "replace").decode(encoding)
