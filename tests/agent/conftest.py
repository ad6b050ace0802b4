"""Run a real script in a real process with the agent inside, and read its records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked
from agent_paths import INJECT
from flatout_agent import wire
from flatout_agent.tell.recorder import Recorder


@dataclass
class AgentRun:
    """One finished process (and its children) with the agent inside."""

    returncode: int
    stdout: str
    stderr: str
    folder: Path

    def records(self) -> list[wire.Record]:
        files = sorted(self.folder.glob("*.jsonl"))
        return [wire.record(line) for path in files for line in path.read_text().splitlines()]

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records() if isinstance(record, kind)]

    def one(self, kind: type[Any]) -> Any:
        found = self.of(kind)
        assert len(found) == 1, found
        return found[0]

    def notes(self) -> dict[str, wire.BoostNote]:
        """The last note of each boost."""
        return {note.id: note for note in self.of(wire.BoostNote)}


RunAgent = Callable[..., AgentRun]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """Of this process. There must be no fault among its records."""
    folder = tmp_path / "own records"
    folder.mkdir()
    found = Recorder(str(folder))
    yield found
    found._file.close()
    assert not [path for path in folder.iterdir() if "fault" in path.read_text()]


@pytest.fixture
def run_agent(tmp_path: Path) -> RunAgent:
    """run_agent(argv, boosts=..., trial=..., name=...) -> AgentRun.

    With `light=True` in a fork that has imported torch already: see `forked`.
    """

    def run(
        argv: list[str],
        boosts: tuple[str | wire.BoostOrder, ...] = (),
        trial: wire.TrialOrders | None = None,
        name: str = "run",
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 120,
        light: bool = False,
        memory: wire.MemoryOrders | None = None,
        export: wire.ExportOrders | None = None,
    ) -> AgentRun:
        folder = tmp_path / name
        folder.mkdir()
        chosen = tuple(wire.BoostOrder(b) if isinstance(b, str) else b for b in boosts)
        orders = folder / "orders.json"
        ordered = wire.Orders(str(folder), chosen, trial, memory=memory, export=export)
        orders.write_text(wire.dump(ordered))
        variables = {"PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(orders), **(env or {})}
        if light:
            done: Any = forked.with_variables(argv, cwd or tmp_path, folder, variables)
            return AgentRun(done.returncode, done.stdout, done.stderr, folder)
        done = subprocess.run(
            [sys.executable, *argv],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**os.environ, **variables},
            timeout=timeout,
        )
        return AgentRun(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


def bare(argv: list[str], cwd: Path, env: dict[str, str] | None = None) -> Any:
    """The same process without flatout."""
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=120,
    )
