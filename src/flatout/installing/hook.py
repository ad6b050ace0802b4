"""The file by which `FLATOUT_LIVE=1` works: Python executes it whenever it starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from flatout.nouns.errors import UserError

SOURCE = Path(__file__).with_name("flatout-live.pth")
"""It may neither fail nor take time where the variable is not set, or flatout is gone."""


def install(packages: Path) -> Path:
    """Put the file among an environment's packages; returns its path. Raises UserError."""
    path = packages / SOURCE.name
    try:
        # Never half of it: another Python of this environment may start meanwhile.
        handle, part = tempfile.mkstemp(dir=packages, prefix=SOURCE.name, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(SOURCE.read_bytes())
        Path(part).chmod(0o644)
        Path(part).replace(path)
    except OSError as error:
        raise _refusal("written", path, error) from None
    return path


def remove(packages: Path) -> Path | None:
    """Delete the file; returns its path, or None if it was not there. Raises UserError."""
    path = packages / SOURCE.name
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal("deleted", path, error) from None
    return path


def _refusal(what: str, path: Path, error: OSError) -> UserError:
    cure = "use a virtual environment of your own, or write flatout.live() into the program"
    return UserError(f"{path} cannot be {what}: {error.strerror or error}", cure, 1)
