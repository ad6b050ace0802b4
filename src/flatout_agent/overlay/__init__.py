"""A trial leaves no trace: the program's changes to the user's files go to scratch.

`install` puts an overlay over the file functions of Python: a changed file is kept below the
scratch folder, the program sees it at its own path, and the user's file stays as it is. Files
written before the first step are kept apart (`<scratch>/prepared`), so data sets that a script
makes on first use are made only once: later trials get the baseline's as `TrialOrders.prepared`.

Libraries that open files by themselves in C++ or Rust are reached one by one (`doors`); experiment
trackers are switched off or sent to scratch (`trackers`). Anything unknown to both writes to its
own paths; the host compares the folder before and after a trial and tells the user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flatout_agent import wire
from flatout_agent.overlay import doors, patches, trackers
from flatout_agent.overlay.opening import Opening
from flatout_agent.overlay.overlay import Overlay

Undo = Callable[[], None]

_installed: list[Overlay] = []


def install(
    trial: wire.TrialOrders,
    report: Callable[[wire.Redirected], None],
    keep: tuple[str, ...] = (),
) -> Undo:
    """Redirect what this process writes, before the user's program starts; returns the undo.

    `keep`: flatout's own folders, which are written directly (records).
    Raises OSError if the scratch folder cannot be used: the program must not run then.
    """

    def tell(path: str) -> None:
        try:
            report(wire.Redirected(path))
        except Exception:  # a report that fails is no reason for the program to fail
            return

    own_folders = (*keep, trial.prepared or "")
    overlay = Overlay(trial.scratch, trial.protect, trial.prepared, own_folders, tell)
    environment = trackers.set_environment(overlay.scratch)
    take_off = patches.put_on(overlay)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=overlay.store.new_lock)
    _installed.append(overlay)

    def undo() -> None:
        take_off()
        environment()
        _installed.remove(overlay)
        overlay.store.state.close()

    return undo


def mark_first_step() -> None:
    """The job takes its first step: what it writes from now on is output, not a data set."""
    for overlay in _installed:
        overlay.store.state.step()


def modules() -> dict[str, Callable[[Any], None]]:
    """Actions for certain modules once the program has imported them."""
    if not _installed:
        return {}
    overlay = _installed[-1]
    return {**doors.hooks(Opening(overlay)), **trackers.hooks(overlay)}
