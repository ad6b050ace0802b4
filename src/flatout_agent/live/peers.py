"""Several ranks, one decision: values are agreed through torch.distributed's store."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import timedelta
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.limits import world_size

WAIT = timedelta(seconds=120)


class Peers:
    """The ranks of a job. If there is only one, everything is agreed at once.

    All ranks take every step together and ask the same questions in the same order.
    """

    def __init__(self) -> None:
        self.world = world_size()
        self.rank = int(os.environ.get("RANK", "0") or 0)
        self._questions = 0
        self._answered = ""
        """The key of this rank's last answer that all ranks have waited for."""

    @property
    def first(self) -> bool:
        """Whether this rank decides and reports."""
        return self.rank == 0

    def agree(self, value: float, how: str) -> float:
        """One value for all ranks. how: `first` (the first rank's), `max` or `min`.

        Raises RuntimeError if the ranks cannot be reached.
        """
        store = self._store()
        if store is None:
            return value
        if how == "first":
            return float(self._of_first(store, repr(value)))
        self._questions += 1
        keys = [f"flatout/{self._questions}/{rank}" for rank in range(self.world)]
        store.set(keys[self.rank], repr(value))
        values = [float(text) for text in _read(store, keys)]
        # All ranks have read the answer before this one, or they would not be here. A question at
        # each unit would else fill the store.
        if self._answered:
            with contextlib.suppress(RuntimeError):  # not every store deletes
                store.delete_key(self._answered)
        self._answered = keys[self.rank]
        return max(values) if how == "max" else min(values)

    def facts_of_first(self, facts: wire.JobFacts) -> wire.JobFacts:
        """The first rank's facts, by which all ranks decide. Raises RuntimeError like `agree`."""
        store = self._store()
        if store is None:
            return facts
        text = self._of_first(store, wire.dump(facts))
        return wire.decode(wire.JobFacts, json.loads(text))

    def _store(self) -> Any:
        """Where the ranks of the job tell each other, or None if there is only one."""
        distributed = torch.distributed
        if self.world == 1 or not (distributed.is_available() and distributed.is_initialized()):
            return None
        return distributed.distributed_c10d._get_default_store()

    def _of_first(self, store: Any, text: str) -> str:
        self._questions += 1
        key = f"flatout/{self._questions}"
        if self.first:
            store.set(key, text)
            return text
        (told,) = _read(store, [key])
        return told


def _read(store: Any, keys: list[str]) -> list[str]:
    """What is told under these keys, as soon as all of it is."""
    store.wait(keys, WAIT)
    at_once = store.has_extended_api()
    told = store.multi_get(keys) if at_once else [store.get(key) for key in keys]
    return [text.decode() for text in told]
