"""Frames for any number of readers: the last minutes for new readers, each new frame for all.

A slow reader loses frames; it delays neither the monitor nor other readers.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque

from flatout.nouns import frame_json
from flatout.nouns.frame import Frame

FINE = 60
"""The number of newest frames that are all kept."""
ONE_IN = 5
"""Among older frames, one in this many is kept."""
COARSE = 168
"""How many older frames are kept: 15 minutes in all at a frame a second."""
WAITING = 20
Event = tuple[int, bytes]


class Publisher:
    """Numbers the frames, so that a page that was away knows which it missed."""

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
        """The kept frames after number `after`, and the queue of new ones, which None ends.

        A number that is not ours, as from an earlier server, means all.
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
        """No more frames will come."""
        with self._lock:
            self.closed = True
            for reader in self._readers:
                reader.put(None)
