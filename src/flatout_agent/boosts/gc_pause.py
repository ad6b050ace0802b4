"""Collect Python's garbage between steps instead of in the middle of them.

## What it does
Raises the thresholds of Python's cyclic garbage collector so that it does not start inside a step,
collects the young generations itself after every tenth step and all of them after the first and
every 500th, and excludes the objects that the imports made (some hundred thousand) from collection
(`gc.freeze`).

## Why it is faster
The collector starts after every 700 new containers (2,000 in newer Python), in the middle of
whatever is running, and a full collection looks at every object that torch and the other libraries
have made. While it runs, the accelerator gets no new work; with several processes each waits for
the one that collects.

## When it does nothing
If the script has disabled the collector or set its thresholds itself. A step that is one long
kernel gains nothing: the collector runs while the device computes.

## What it may change
Results stay the same. Objects in reference cycles may live up to ten steps longer (500 if they were
old), and memory that they hold with them. The collector still starts by itself after 100,000 new
containers, so that a long evaluation without steps is safe. An object that was alive when torch had
been imported and later becomes garbage in a cycle stays in memory.

## How it is undone
The previous thresholds are restored and frozen objects are returned to the collector. Forked child
processes get the old thresholds at once, and never collect what they have from their parent.

## References
- https://docs.python.org/3/library/gc.html
- https://pytorch.org/blog/understanding-gpu-memory-2/
"""

from __future__ import annotations

import functools
import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.1.0", risk=Risk.EXACT, moment=Moment.START)

DEFAULTS = (700, 2000)
"""Python's own first thresholds, in old and new versions."""
PAUSED = (100_000, 50, 1000)
YOUNG_EVERY = 10
FULL_EVERY = 500

Thresholds = tuple[int, int, int]


def applies(facts: JobFacts, params: Params) -> str | None:
    """The collector must be running for a pause to help."""
    return None if facts.gc_enabled else "the script has switched the garbage collector off"


def promise(facts: JobFacts, params: Params) -> float:
    """A pause of milliseconds, which matters if steps are short."""
    return 1.03 if facts.step_s is not None and facts.step_s < 0.02 else 1.005


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Raise the thresholds now and collect after steps, until the script sets them itself."""
    if not gc.isenabled():
        raise Declined("the garbage collector is switched off")
    if gc.get_threshold()[0] not in DEFAULTS:
        raise Declined(f"the collector's thresholds are set already: {gc.get_threshold()}")
    pause = _Pause()
    stop = job.after_step(pause.after_step)

    def undo() -> None:
        stop()
        pause.end()

    return Applied(undo, pause.engagement)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The lines around and inside the training loop that do the same."""
    return "\n".join(
        [
            "import gc",
            "",
            "gc.freeze()  # after the imports",
            f"gc.set_threshold{PAUSED}",
            "",
            "# in the loop, after optimizer.step():",
            f"if step == 1 or step % {FULL_EVERY} == 0:",
            "    gc.collect()",
            f"elif step % {YOUNG_EVERY} == 0:",
            "    gc.collect(1)",
        ]
    )


class _Pause:
    """Raised thresholds, and the collections that take their place."""

    def __init__(self) -> None:
        self.own_thresholds: Thresholds = gc.get_threshold()
        self.froze = gc.get_freeze_count() == 0  # else the script's own freeze stands
        self.steps = 0
        self.active = True
        if self.froze:
            gc.collect()
            gc.freeze()
        gc.set_threshold(*PAUSED)
        _pauses.add(self)
        _watch_forks()

    def after_step(self) -> None:
        if not self.active:
            return
        self.steps += 1
        if not self._ours():  # the script has set the collector itself in the meantime
            self.active = False
        elif self.steps == 1 or self.steps % FULL_EVERY == 0:
            # After the first step, what was imported and loaded since becomes old: looking at all
            # of it takes up to 0.3 s.
            gc.collect()
        elif self.steps % YOUNG_EVERY == 0:
            gc.collect(1)

    def end(self) -> None:
        """Restore the thresholds, unless the script has set them since."""
        self._restore()
        if self.froze:
            gc.unfreeze()
            self.froze = False

    def end_in_child(self) -> None:
        """The same in a forked child, whose collector leaves alone what it has from the parent.

        Looking at all of that takes 0.2 s in each loader worker, early in the training, and copies
        the memory that they share.
        """
        self._restore()
        if self.froze:
            gc.freeze()

    def _restore(self) -> None:
        if self._ours():
            gc.set_threshold(*self.own_thresholds)
        self.active = False

    def engagement(self) -> tuple[bool, str]:
        if not self.active:
            return False, "the script sets the collector itself"
        if self.steps < YOUNG_EVERY:
            return False, f"only {self.steps} steps: nothing was collected between them"
        return True, f"collected after every {YOUNG_EVERY} steps"

    def _ours(self) -> bool:
        return gc.isenabled() and gc.get_threshold() == _as_read(PAUSED)


_pauses: weakref.WeakSet[_Pause] = weakref.WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Python keeps these registrations for good, so they are made once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    """A forked child takes no steps that would collect."""
    for pause in list(_pauses):
        if pause.active:
            pause.end_in_child()


def _as_read(thresholds: Thresholds) -> Thresholds:
    """Python 3.14 ignores the third threshold and reads it as 0."""
    return thresholds if gc.get_threshold()[2] else (thresholds[0], thresholds[1], 0)
