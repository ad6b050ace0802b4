"""Place: a line of the user's own code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A line of the user's own code, not of torch or another package."""

    file: str
    """Path from where the program was started: pkg/model.py; outside it, the whole path."""
    line: int
    function: str = ""
    source: str = ""
    """The text of the line, stripped; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
