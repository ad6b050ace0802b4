"""The frames of a recorded run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flatout.nouns import frame_json
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.watching.recording import NAME

NEXT = "name a run's folder, as .flatout/runs/20261124T091500Z-run"


class Replay:
    """A run's folder, or its history. Damaged lines are left out."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if there is no history."""
        self.path = path / NAME if path.is_dir() else path
        if not self.path.is_file():
            raise UserError(f"there is no history of a run in {path}", NEXT, 1)

    def frames(self) -> Iterator[Frame]:
        """All frames, as recorded. Raises UserError if there are none."""
        count = 0
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        frame = frame_json.load(json.loads(line))
                    except (ValueError, RecursionError):
                        continue
                    count += 1
                    yield frame
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}", NEXT, 1) from error
        if not count:
            raise UserError(f"{self.path} holds no frame", NEXT, 1)
