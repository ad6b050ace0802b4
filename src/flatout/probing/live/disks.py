"""Free space of file systems, asked in other threads: a dead network mount never answers."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Sequence

from flatout.nouns.machine_sample import DiskSample

EVERY_S = 5.0
SHARED_MEMORY = "/dev/shm"


class Disks:
    """The last answers. A folder that does not answer delays only its own next questions."""

    def __init__(self) -> None:
        self._answers: dict[str, DiskSample] = {}
        self._asked: dict[str, float] = {}
        self._under_way: set[str] = set()

    def sample(self, folders: Sequence[str], wait_s: float = 0.05) -> tuple[DiskSample, ...]:
        """Each folder's file system, and shared memory, without those that have not answered.

        wait_s: how long to wait for first answers.
        """
        shared = [SHARED_MEMORY] if sys.platform.startswith("linux") else []
        wanted = list(dict.fromkeys([*folders, *shared]))
        now = time.monotonic()
        first_threads = []
        for path in wanted:
            if path in self._under_way or now - self._asked.get(path, -EVERY_S) < EVERY_S:
                continue
            self._asked[path] = now
            self._under_way.add(path)
            thread = threading.Thread(target=self._answer, args=(path,), daemon=True)
            thread.start()
            if path not in self._answers:
                first_threads.append(thread)
        for thread in first_threads:
            thread.join(wait_s)
        for path in set(self._answers) - set(wanted):
            self._answers.pop(path, None)
        return tuple(self._answers[path] for path in wanted if path in self._answers)

    def _answer(self, path: str) -> None:
        try:
            usage = shutil.disk_usage(path)
            self._answers[path] = DiskSample(path, usage.total, usage.free)
        except OSError:
            self._answers.pop(path, None)
        finally:
            self._under_way.discard(path)
