"""The program of an engine (kubectl, sky), which answers as the real one did, from a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flatout.launching import engine_calls
from flatout.launching.engine_calls import ToolAnswer

Table = list[tuple[list[str], int, str, str]]
"""Words, exit code, stdout, stderr: the first entry counts whose words are all in the command."""


class FakeTool:
    """In the place of processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        """The words of each call."""
        self._table: Table = []
        monkeypatch.setattr(engine_calls, "need", lambda program, next_step: program)
        monkeypatch.setattr(engine_calls, "ask", self._ask)
        monkeypatch.setattr(engine_calls, "lines_of", self._lines)

    def answers(self, *tables: Table) -> None:
        """Answer so from now on."""
        self._table = [entry for table in tables for entry in table]

    def _ask(self, command: Sequence[str], *_: Any, **__: Any) -> ToolAnswer:
        self.asked.append(list(command[1:]))
        for needed, code, stdout, stderr in self._table:
            if all(word in command for word in needed):
                return ToolAnswer(code, stdout, stderr)
        return ToolAnswer(1, "", f"no answer to {command}")

    def _lines(self, command: Sequence[str], *_: Any, **__: Any) -> Iterator[str | None]:
        yield from self._ask(command).stdout.splitlines()
