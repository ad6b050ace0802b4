"""Loader workers that are started anew, by forking, after a boost has changed this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.workers import worker_safety

if TYPE_CHECKING:
    import torch

SPAWNED = "its workers are not forked, and would not have the change"


def why_not_fresh(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    """Why a change in this process would not reach this loader's workers, or None if it would."""
    chosen = getattr(loader, "multiprocessing_context", None)
    method = chosen.get_start_method() if chosen is not None else worker_safety.start_method()
    if loader.num_workers and method != "fork":
        return SPAWNED
    if loader._iterator is not None and "_get_iterator" not in vars(loader):
        return "the loader keeps its workers, which were started without the change"
    return None


class _Init:
    """A `worker_init_fn` that does what the program's own does.

    As it is another object, a running epoch notices that its workers must be restarted.
    """

    def __init__(self, init: Callable[[int], None] | None, then: Callable[[], None] | None) -> None:
        self.own, self._then = init, then

    def __call__(self, worker: int) -> None:
        if self.own is not None:
            self.own(worker)
        if self._then is not None:
            self._then()


def with_fresh_workers(
    loader: torch.utils.data.DataLoader[Any], then: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Let the loader restart its workers, now and when this is undone.

    then: called in each new worker before it reads anything; must not raise.
    """
    parts = vars(loader)
    init = parts["worker_init_fn"] = _Init(parts["worker_init_fn"], then)
    parts["_iterator"] = None
    reference = weakref.ref(loader)

    def undo() -> None:
        loader = reference()
        if loader is None:
            return
        parts = vars(loader)
        if parts["worker_init_fn"] is init:  # else it is inside another boost's
            parts["worker_init_fn"] = init.own
        parts["_iterator"] = None

    return undo
