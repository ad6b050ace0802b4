"""After the last decision the Guard checks again, for as long as the run lasts.

It looks at steps spaced twice as far each time, the same on all ranks. Boosts found wrong are taken
out, and the weights go back to those of the last sound step if they could be kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from flatout_agent.job import Job
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.checks import WAIT_UNITS, Checks
from flatout_agent.live.failed_calls import CALLED, Unsound
from flatout_agent.live.snapshot import Snapshot

FIRST_RECHECK = 100
"""Steps after the last decision until the Guard checks again; then twice as many ..."""
FARTHEST = 2000
"""... up to this many: a look takes some four steps, and a boost that goes wrong spoils at most
this much training."""
COPYING = 0.01
"""Copying a snapshot may take this share of the time between two ..."""
QUICK_S = 0.5
"""... if it takes longer than this."""
NO_LONGER = "the guard no longer holds: "

Agree = Callable[[float, str], float]


class Rechecks:
    """The later checks of the kept boosts in one run."""

    def __init__(self, job: Job, checks: Checks, agree: Agree, unsound: Unsound) -> None:
        self.job, self.checks = job, checks
        self._agree, self._unsound = agree, unsound
        self.sound_step = self.undone = 0
        """The last step that is known to be sound, and the number of steps that were undone."""
        self._kept: list[Candidate] = []
        self._ids: list[str] = []
        self._every = FIRST_RECHECK
        self._next = 0
        self.looking = False
        """The Guard compares calls of the steps under way."""
        self._waited = 0
        self._snapshot = Snapshot(job.models, job.optimizers)
        self._snapshot_at, self._snapshot_s = -math.inf, 0.0
        """When the last snapshot was taken, and how long it took."""
        self._stop: Callable[[], None] = lambda: None

    def begin(self, kept: list[Candidate]) -> None:
        """Begin to look, as long as any of `kept` acts on the model's calls; others may shorten
        `kept`.
        """
        self._kept = kept
        self._ids = [candidate.id for candidate in self._called()]
        if self._ids:
            self._sound()
            self._next = self.job.steps + self._every
            self._stop = self.job.after_step(self._step)

    def _called(self) -> list[Candidate]:
        return [candidate for candidate in self._kept if candidate.boost.moment in CALLED]

    def _step(self) -> None:
        """Called at the end of each step. All ranks ask the same questions at the same steps."""
        if not self.looking and self.job.steps < self._next:
            return
        if self.job.device == "cuda" and torch.cuda.is_current_stream_capturing():
            return  # the script records this step: nothing may be copied in it
        try:
            if self.looking:
                self._waited += 1
                ended = self.checks.answered() or self._waited >= WAIT_UNITS
                if self._agree(float(ended), "min"):
                    self._checked()
            else:
                self.looking, self._waited = True, 0
                self.checks.look_at(self._called())
        except Exception:
            self._end()  # the other ranks cannot be reached: no more checks
            raise

    def _checked(self) -> None:
        passed, wrong, reason = self.checks.looked()
        self.looking = False
        ids = [boost for boost in self._ids if self._agree(float(boost in wrong), "max")]
        if ids:
            self._ids = [boost for boost in self._ids if boost not in ids]
            first, last = self.sound_step + 1, self.job.steps
            end = "were trained under it"
            snapshot_step = self._snapshot.step if self._snapshot.whole else None
            if snapshot_step is not None:
                first = snapshot_step + 1
                self.undone += last - snapshot_step
                end += f", so the weights and the optimizer are those of step {snapshot_step} again"
            why = f"{NO_LONGER}{reason or 'on another rank'}"
            self._unsound(ids, f"{why}; the weights of steps {first} to {last} {end}")
            if snapshot_step is not None:
                self._snapshot.put_back()
            self.sound_step = last
        elif self._agree(float(passed), "min"):
            self._sound()
        self._every = min(2 * self._every, FARTHEST)
        self._next = self.job.steps + self._every
        if not self._ids:
            self._end()

    def _sound(self) -> None:
        """Take a snapshot if one is due: the present weights were trained soundly."""
        self.sound_step = self.job.steps
        now = time.perf_counter()
        due = self._snapshot_s <= QUICK_S or now - self._snapshot_at >= self._snapshot_s / COPYING
        # A program that changes its weights itself may keep state about them that is not known
        # here.
        wanted = due and not self.job.by_hand and self._snapshot.fits()
        if self._agree(float(wanted), "min"):
            self._snapshot.take(self.job.steps)
            self._snapshot_at = time.perf_counter()
            self._snapshot_s = self._snapshot_at - now

    def _end(self) -> None:
        self._stop()
        self._snapshot.drop()
