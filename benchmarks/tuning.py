"""Run `flatout tune --json` as a user does, for the other benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def tune(
    words: list[str], folder: Path, *options: str, timeout_s: float = 1800.0
) -> dict[str, Any]:
    """The JSON document of one tuning in `folder`, with `seconds` and `exit_code` added."""
    command = [sys.executable, "-m", "flatout", "tune", "--json", *options, *words]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=timeout_s)
    if done.returncode not in (0, 1, 2) or not done.stdout.startswith("{"):
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return {**document, "seconds": time.perf_counter() - began, "exit_code": done.returncode}


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of a tuning's document."""
    kept = [trial for trial in document["trials"] if trial["verdict"] == "kept" and trial["boosts"]]
    dropped = [trial for trial in document["trials"] if trial["verdict"] in ("slower", "different")]
    return {
        "baseline": _without_series(document["baseline"]),
        "best": _without_series(document["best"]),
        "speedup": document["speedup"],
        "speedup_interval": document["speedup_interval"],
        "plan_written": document["exit_code"] == 0,
        "kept": {trial["boosts"][-1]: trial["gain"] for trial in kept},
        "dropped": {trial["boosts"][-1]: trial["gain"] for trial in dropped},
        "guard": document["guard"],
        "seconds": round(document["seconds"], 1),
        "trials": len([trial for trial in document["trials"] if trial["verdict"] != "skipped"]),
    }


def _without_series(figures: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without what there is one of per step."""
    if figures is None:
        return None
    return {name: value for name, value in figures.items() if name not in ("steps_ms", "losses")}
