"""Frames taken in a thread, so that the drawing thread can answer keys meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

from flatout.nouns.frame import Frame


class FrameFeed:
    """The frames that have arrived and were not taken yet."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames: queue.Queue[Frame] = queue.Queue()
        self.over = False
        """Whether no more frames will come."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(frames,), daemon=True)
        self._thread.start()

    def _run(self, frames: Iterator[Frame]) -> None:
        try:
            for frame in frames:
                self._frames.put(frame)
        except BaseException as error:  # raised again in the thread that draws
            self._error = error
        self.over = True

    def taken(self) -> list[Frame]:
        """The frames since the last call, oldest first."""
        frames: list[Frame] = []
        with suppress(queue.Empty):
            while True:
                frames.append(self._frames.get_nowait())
        return frames

    @property
    def failed(self) -> bool:
        """Whether the source has raised something."""
        return self._error is not None

    def check(self) -> None:
        """Raise what the source raised."""
        if self._error is not None:
            raise self._error
