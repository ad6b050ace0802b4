"""JSON documents that flatout wrote, read again from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatout.nouns.errors import UserError


def load(path: Path, next_step: str) -> Any:
    """The file's content. Raises UserError with that next step if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", next_step) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", next_step) from error
