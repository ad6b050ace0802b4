"""Read the agents' records while they are being written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flatout_agent import wire


class Tail:
    """Follows every `<pid>.jsonl` of one folder; gives each complete line once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = 0
        """Lines that were no record: damaged, or of a kind that this version does not know."""
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}

    def new(self) -> Iterator[tuple[int, wire.Record]]:
        """(process id, record) for each line completed since the last call.

        The lines of one process come in its own order; processes come one after the other.
        """
        for path in sorted(self.folder.glob("*.jsonl")):
            if path.stem.isdecimal():
                for line in self._lines(path):
                    record = self._parse(line)
                    if record is not None:
                        yield int(path.stem), record

    def _lines(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
        except OSError:
            return []
        self._offsets[path] = self._offsets.get(path, 0) + len(data)
        *lines, rest = (self._partial.get(path, b"") + data).split(b"\n")
        self._partial[path] = rest  # a line still being written
        return lines

    def _parse(self, line: bytes) -> wire.Record | None:
        if not line.strip():
            return None
        try:
            return wire.record(line.decode("utf-8"))
        except Exception:  # whatever a damaged line makes the decoder raise
            self.skipped += 1
            return None
