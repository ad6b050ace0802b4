"""Run a script with a profile ordered, and read what it recorded.

With `light=True` in a fork that has imported torch already (see `forked`), else in a process of its
own.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
from agent_paths import INJECT
from flatout_agent import wire


@dataclass
class Profiled:
    """One finished process, or several of one program."""

    returncode: int
    stdout: str
    stderr: str
    folder: Path
    script: Path

    def of(self, kind: type[Any]) -> list[Any]:
        files = sorted(self.folder.glob("*.jsonl"))
        lines = [line for path in files for line in path.read_text().splitlines()]
        return [item for item in map(wire.record, lines) if isinstance(item, kind)]

    @property
    def seen(self) -> wire.LoopSeen:
        (found,) = self.of(wire.LoopSeen)
        return found

    def line(self, mark: str) -> str:
        """file:line of the script's line that ends with `# mark`."""
        lines = self.script.read_text().splitlines()
        (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
        return f"{self.script.name}:{number}"

    def calls(self, name: str) -> dict[str | None, wire.CallSeen]:
        return {call.where: call for call in self.seen.calls if call.name == name}


def run(
    argv: Sequence[str],
    folder: Path,
    orders: wire.ProfileOrders | None = None,
    env: Mapping[str, str] | None = None,
    light: bool = False,
) -> Profiled:
    """In `folder`; the script is the first word that is a file."""
    records = folder / "records"
    records.mkdir(parents=True)
    path = folder / "orders.json"
    path.write_text(wire.dump(wire.Orders(str(records), profile=orders or wire.ProfileOrders())))
    more = {"PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(path), **(env or {})}
    done = _ended(argv, folder, records, more, light)
    script = next(Path(word) for word in argv if word.endswith(".py"))
    return Profiled(done.returncode, done.stdout, done.stderr, records, folder / script)


def bare(argv: Sequence[str], folder: Path, light: bool = False) -> forked.Done:
    """The same program without flatout."""
    folder.mkdir(parents=True, exist_ok=True)
    return _ended(argv, folder, folder, {}, light)


def _ended(
    argv: Sequence[str], folder: Path, results: Path, more: Mapping[str, str], light: bool
) -> forked.Done:
    # As the host sets it: torch.profiler's library writes to stderr otherwise.
    variables = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", **more}
    if light:
        return forked.with_variables([*argv], folder, results, variables)
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
        timeout=240,
    )
    return forked.Done(done.returncode, done.stdout, done.stderr)


def events(trace: str) -> list[dict[str, Any]]:
    """The events of a trace file."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def marks(trace: str) -> list[dict[str, Any]]:
    """The step marks in a trace, on the host's side."""
    return [
        item
        for item in events(trace)
        if item.get("name", "").startswith("ProfilerStep#") and item.get("cat") == "user_annotation"
    ]
