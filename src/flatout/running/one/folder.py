"""Where one run keeps its files: `.flatout/runs/<UTC time>-<verb>/` in the working folder."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

ROOT = Path(".flatout")


def fresh(verb: str, under: Path | None = None) -> Path:
    """A new empty folder for one run; a temporary one if the working folder is read-only.

    Raises OSError only if nothing can be written anywhere.
    """
    under = Path.cwd() if under is None else under
    try:
        root = under / ROOT
        runs = root / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        for number in count(1):
            folder = runs / (f"{stamp}-{verb}" if number == 1 else f"{stamp}-{verb}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
        raise AssertionError("count() has no end")
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"flatout-{verb}-"))


def compile_cache(run_folder: Path) -> Path:
    """Where a run's compiled code stays: beside the runs, for the next one; if they could not be
    made there, with this one.
    """
    root = ROOT.absolute()
    return (root if run_folder.is_relative_to(root) else run_folder) / "cache" / "inductor"
