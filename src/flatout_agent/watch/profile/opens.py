"""Files that forked loader workers open, counted in the worker and reported in a file.

Functions patched before a fork are also patched in the worker.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from flatout_agent import wire
from flatout_agent.watch.calls import Calls, opened
from flatout_agent.watch.profile.reports import ForkReports

EVERY_S = 0.2
"""Seconds between two reports of a worker."""
Counts = dict[tuple[int, str, str], tuple[int, float, tuple[str, ...]]]
"""Process, name and place -> calls, seconds and some of the files (at most `MOST_FILES`)."""
MOST_FILES = 64


class WorkerOpens:
    """Counts files that workers open; made once, in the process that trains."""

    def __init__(self, folder: str) -> None:
        self.reports = ForkReports(folder, "opens", state=True)
        self.inherited: list[Callable[[], None]] = []
        """The wrappers inherited from the process that trains, which a worker removes."""
        self._failed = False
        if sys.platform != "win32" and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @property
    def on(self) -> bool:
        """Whether workers count; False in a process that cannot."""
        return bool(self.reports.state) and not self._failed

    def remove(self) -> None:
        """Stop counting in workers; workers started later do not begin."""
        self.reports.state = False

    def counts(self, pids: Iterable[int]) -> Counts:
        """The counts of these workers so far."""
        counts: Counts = {}
        for pid in pids:
            try:
                rows = json.loads(self.reports.read(pid) or "[]")
            except ValueError:
                continue
            for name, where, calls, seconds, files in rows:
                counts[pid, name, where] = calls, seconds, tuple(files)
        return counts

    def _forked(self) -> None:
        if self.on:
            try:
                for undo in self.inherited:
                    undo()
                counting = _Counting(self)
                counting.active = True
                counting.watch_files()
            except Exception:
                self._failed = True  # in this worker alone


class _Counting(Calls):
    """The counter in a worker, only for functions that open files."""

    def __init__(self, opens: WorkerOpens) -> None:
        super().__init__()
        self._opens = opens
        self._reported_at = 0.0

    def _add(
        self, name: str, where: str | None, spent: float, detail: str, result: Any = None
    ) -> None:
        if not self._opens.on:
            self.remove()
            return
        super()._add(name, where, spent, detail, result)
        now = time.monotonic()
        if now - self._reported_at > EVERY_S:
            self._reported_at = now
            self._report()

    def _report(self) -> None:
        rows = [
            (name, where or "", entry.calls, entry.s, sorted(entry.files)[:MOST_FILES])
            for (name, where), entry in self.entries.items()
        ]
        self._opens.reports.write(json.dumps(rows))


def calls_in_workers(now: Counts, before: Counts, steps: int) -> tuple[wire.CallSeen, ...]:
    """The files that all workers opened in between, per step."""
    total: dict[tuple[str, str], wire.CallSeen] = {}
    for key, (calls, seconds, files) in now.items():
        earlier_calls, earlier_s, _ = before.get(key, (0, 0.0, ()))
        label, detail, count = opened(key[1], calls, files)
        empty = wire.CallSeen(
            label, 0.0, 0.0, key[2] or None, f"{detail} in a worker".strip(), count, in_worker=True
        )
        call = total.get((label, key[2]), empty)
        total[label, key[2]] = dataclasses.replace(
            call,
            calls=call.calls + (calls - earlier_calls) / steps,
            s=call.s + (seconds - earlier_s) / steps,
        )
    return tuple(call for call in total.values() if call.calls)
