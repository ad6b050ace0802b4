"""A run's history in its folder: a frame a second for the last 10 minutes, fewer before.

Never more than 8 MB. On a full or read-only disk there is no history.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flatout.nouns import frame_json
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.watching.steps import evenly

NAME = "history.jsonl"
FINE_S = 600.0
COARSE_S = 10.0
MOST_BYTES = 8_000_000
LAST_BYTES = 256 * 1024
"""The last frame of a history fits into this many bytes."""
MOST_STEPS = 10
"""The most steps of one frame."""
NEXT = "name a run's folder, as .flatout/runs/20261124T091500Z-run"
TIME = re.compile(rb'"time_s": ([0-9.eE+]+)')


def last_frame(folder: Path) -> Frame | None:
    """The last frame that a run has written into its folder, or None if there is none."""
    try:
        with (folder / NAME).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            return frame_json.load(json.loads(line))
    return None


def frames(run: Path) -> Iterator[Frame]:
    """All frames of a run's folder, or of its history, as recorded; damaged lines are left out.

    Raises UserError if there are none.
    """
    path = run / NAME if run.is_dir() else run
    if not path.is_file():
        raise UserError(f"there is no history of a run in {run}", NEXT, 1)
    count = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    frame = frame_json.load(json.loads(line))
                except (ValueError, RecursionError):
                    continue
                count += 1
                yield frame
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", NEXT, 1) from error
    if not count:
        raise UserError(f"{path} holds no frame", NEXT, 1)


class HistoryRecording:
    """Writes `history.jsonl`. An error ends only the recording."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = folder / NAME
        self._most_bytes = most_bytes
        self._bytes = 0
        self._since_thinned_s: float | None = None
        self._told: dict[tuple[object, ...], str] = {}
        self._over = False

    def add(self, frame: Frame) -> None:
        """Append one frame, with the alerts that fire or have changed."""
        if self._over:
            return
        alerts = []
        for alert in frame.alerts:
            key = (*alert.key, alert.since_s)
            if alert.state == "firing" or self._told.get(key) not in (None, alert.state):
                alerts.append(alert)
            if alert.state != "pending":
                self._told[key] = alert.state
        jobs = [
            replace(job, recent_steps=evenly(job.recent_steps, MOST_STEPS)) for job in frame.jobs
        ]
        lean = replace(frame, jobs=tuple(jobs), alerts=tuple(alerts))
        line = json.dumps(frame_json.dump(lean, lean=True)).encode() + b"\n"
        try:
            self._make_room(frame.time_s, len(line))
            with self.path.open("ab") as file:
                file.write(line)
            self._bytes += len(line)
        except OSError:
            self._over = True

    def _make_room(self, now_s: float, more: int) -> None:
        if self._since_thinned_s is None:
            self._since_thinned_s = now_s
        due = abs(now_s - self._since_thinned_s) >= FINE_S
        if not due and self._bytes + more <= self._most_bytes:
            return
        self._since_thinned_s = now_s
        apart_s = COARSE_S
        lines = self.path.read_bytes().splitlines(keepends=True)
        fine_s = FINE_S
        while True:
            # All lines from then on; before that, one every `apart_s` seconds.
            fine_from_s = now_s - fine_s
            kept: list[bytes] = []
            last_s = -apart_s
            for line in lines:
                match = TIME.search(line, 0, 200)
                time_s = float(match[1]) if match else 0.0
                if time_s >= fine_from_s or abs(time_s - last_s) >= apart_s:
                    kept.append(line)
                    last_s = time_s
            size = sum(map(len, kept))
            # Leave some room, so that the next frame does not cause thinning again.
            if size + more <= 0.75 * self._most_bytes or len(kept) <= 2:
                break
            apart_s, fine_s = 2 * apart_s, fine_s / 2
        while kept and sum(map(len, kept)) + more > self._most_bytes:
            del kept[0]
        text = b"".join(kept)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=NAME, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            Path(name).replace(self.path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        self._bytes = len(text)
