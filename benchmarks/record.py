"""One file of results per benchmark: the figures, and where and when they were measured."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flatout
from flatout.probing.identity import identity

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parent.parent


def write(name: str, figures: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `<name>.json`: the figures beside machine, date, commit and versions."""
    facts = dataclasses.asdict(identity(torch=_version("torch")))
    document = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": figures,
        "machine": facts,
        "platform": platform.platform(),
        "flatout": flatout.__version__,
        "commit": commit(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    shown = json.dumps(figures, indent=2)
    sys.stdout.write(f"{shown}\nwritten to {path}\n")
    return path


def rows(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """The rows of earlier runs; none if there is no result yet."""
    path = folder / f"{name}.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]["rows"]
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit that was measured, marked where files other than results differ from it."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
