"""Frames for any number of readers: the last minutes for who comes, each new one for who is here.

A reader that is slow loses frames; it delays neither the monitor nor the others.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque

from flatout.nouns import frame_json
from flatout.nouns.frame import Frame

FINE = 60
"""Of the newest frames each is kept ..."""
ONE_IN = 5
"""... of those before one in so many ..."""
COARSE = 168
"""... so many of them: 15 minutes in all at a frame a second."""
WAITING = 20
Event = tuple[int, bytes]


class Publisher:
    """Gives each frame a number, by which a page that was away finds out what it missed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine: deque[Event] = deque()
        self._coarse: deque[Event] = deque(maxlen=COARSE)
        self._readers: list[queue.Queue[Event | None]] = []
        self._last = 0
        self.closed = False

    def put(self, frame: Frame) -> None:
        """One more frame."""
        text = json.dumps(frame_json.dump(frame), separators=(",", ":")).encode()
        with self._lock:
            self._last += 1
            event = self._last, text
            self._fine.append(event)
            if len(self._fine) > FINE:
                oldest = self._fine.popleft()
                if oldest[0] % ONE_IN == 0:
                    self._coarse.append(oldest)
            for reader in self._readers:
                if reader.qsize() >= WAITING:
                    reader.get_nowait()
                reader.put(event)

    def join(self, after: int) -> tuple[list[Event], queue.Queue[Event | None]]:
        """What is kept of later than number `after`, and the queue of what comes; None: the end.

        A number that is not ours, as of a server before this one, means all.
        """
        reader: queue.Queue[Event | None] = queue.Queue()
        with self._lock:
            first = after if after <= self._last else 0
            kept = [event for event in (*self._coarse, *self._fine) if event[0] > first]
            self._readers.append(reader)
        return kept, reader

    def leave(self, reader: queue.Queue[Event | None]) -> None:
        """The reader is gone."""
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)

    def close(self) -> None:
        """No more frames."""
        with self._lock:
            self.closed = True
            for reader in self._readers:
                reader.put(None)
