"""Training programs that flatout did not start, as far as known from outside."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flatout.nouns.typed import typed

EVERY_S = 10.0
MOST_LETTERS = 300
TORCH = b"libtorch"
NAMES = ("python", "pt_main_thread", "torchrun")
OUR_PROGRAMS = "flatout_programs"
"""In the paths of programs that flatout starts: export workers, self-tests, ceilings."""
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ForeignJob:
    """A process that has loaded torch or computes on a GPU, with its descendants."""

    pid: int
    began_s: float
    user: str | None
    command: str
    folder: str | None
    ancestors: frozenset[int] = frozenset()


class ForeignJobs:
    """Looks for such jobs every ten seconds."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._found: list[ForeignJob] = []
        self._ours: set[int] = set()
        """Processes of flatout. Their descendants, such as torch's compilers, are no jobs."""
        self._known: dict[tuple[int, float], bool] = {}
        """Whether a process, by pid and start, has loaded torch. If not, it may still do so."""

    def find(self, own: Collection[int], on_gpu: Collection[int] = ()) -> list[ForeignJob]:
        """Jobs that run now. own: processes of known jobs, to which their descendants belong.

        on_gpu: processes that compute on a GPU, and on Windows the desktop's programs, too.
        """
        now_s = time.monotonic()
        if self._last_s is None or now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            self._ours = set[int]()
            torch = {process.pid: process for process in self._with_torch(set(on_gpu))}
            jobs = []
            for process in torch.values():
                with suppress(psutil.Error):
                    if process.ppid() not in torch:  # loader workers belong to their parent
                        job = _job(process)
                        jobs += [job] if not job.ancestors & self._ours else []
            self._found = sorted(jobs, key=lambda job: job.began_s)
        known = set(own)
        return [job for job in self._found if not known & {job.pid, *job.ancestors}]

    def _with_torch(self, on_gpu: set[int]) -> Iterable[psutil.Process]:
        seen: dict[tuple[int, float], bool] = {}
        for process in psutil.process_iter(["name"]):
            name = process.info["name"] or ""
            with suppress(psutil.Error):
                if name.startswith(NAMES) and OUR_PROGRAMS in " ".join(process.cmdline()[:4]):
                    self._ours.add(process.pid)
                    continue
                key = process.pid, process.create_time()
                if process.pid in on_gpu and (sys.platform != "win32" or name.startswith(NAMES)):
                    yield process
                elif name.startswith(NAMES):
                    seen[key] = self._known.get(key, False) or _maps_torch(process.pid)
                    if seen[key]:
                        yield process
        self._known = seen


def _maps_torch(pid: int) -> bool:
    """Whether torch's library is in its memory; also False if that cannot be read."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            return TORCH in file.read(MOST_BYTES)
    except OSError:
        return False


def _job(process: psutil.Process) -> ForeignJob:
    user = folder = None
    words: list[str] = []
    ancestors: frozenset[int] = frozenset()
    with suppress(psutil.Error):
        ancestors = frozenset(parent.pid for parent in process.parents())
    with suppress(psutil.Error):
        user = process.username()
    with suppress(psutil.Error):
        words = process.cmdline()
    with suppress(psutil.Error):
        folder = process.cwd()
    command = typed(words) or process.name()
    began_s = process.create_time()
    return ForeignJob(process.pid, began_s, user, command[:MOST_LETTERS], folder, ancestors)
