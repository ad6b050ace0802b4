"""Every package that is installed in this interpreter, Python 3.8 or newer; reported as JSON.

Standard library only. Where a package is found twice, the first is the one that is imported.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell


def main(arguments: list[str], tell: Tell) -> None:
    """Report the list."""
    entries: dict[str, dict[str, Any]] = {}
    for distribution in distributions():
        entry = describe(distribution)
        if entry is not None:
            entries.setdefault(entry["name"].lower().replace("_", "-").replace(".", "-"), entry)
    listing = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": [entries[name] for name in sorted(entries)],
        "conda": conda_packages(Path(sys.prefix) / "conda-meta"),
    }
    tell(listing)


def describe(distribution: Distribution) -> dict[str, Any] | None:
    """One package, or None if its metadata is broken."""
    try:
        name, version = distribution.metadata["Name"], distribution.version
    except Exception:
        return None
    if not name or not version:
        return None
    origin = read(distribution, "direct_url.json")
    try:
        direct = json.loads(origin) if origin else None
    except ValueError:
        direct = None
    installer = (read(distribution, "INSTALLER") or "").strip() or None
    return {"name": name, "version": version, "installer": installer, "direct_url": direct}


def read(distribution: Distribution, name: str) -> str | None:
    """A file of the package's metadata, or None if it is missing."""
    try:
        return distribution.read_text(name)
    except Exception:
        return None


def conda_packages(folder: Path) -> list[dict[str, str]] | None:
    """The packages that conda installed, or None if this is no conda environment."""
    if not folder.is_dir():
        return None
    records = []
    for file in sorted(folder.glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            keys = ("name", "version", "build", "channel")
            records.append({key: str(record[key]) for key in keys})
        except (OSError, ValueError, KeyError, TypeError):  # noqa: PERF203 - once for each package
            continue
    return records


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
