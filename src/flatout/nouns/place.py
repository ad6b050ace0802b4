"""Place: a line of the user's own code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A line of the user's own code: not of torch's, nor of a package's."""

    file: str
    """From where the program was started: train.py, pkg/model.py; outside of it the whole path."""
    line: int
    function: str = ""
    source: str = ""
    """The text of the line, stripped; empty: not known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
