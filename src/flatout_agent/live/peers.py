"""Several ranks, one decision: values are agreed through torch.distributed's store."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

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

    @property
    def first(self) -> bool:
        """Whether this rank decides and reports."""
        return self.rank == 0

    def agree(self, value: float, how: str) -> float:
        """One value for all ranks. how: `first` (the first rank's), `max` or `min`.

        Raises RuntimeError if the ranks cannot be reached.
        """
        distributed = torch.distributed
        if self.world == 1 or not (distributed.is_available() and distributed.is_initialized()):
            return value
        store = distributed.distributed_c10d._get_default_store()
        self._questions += 1
        prefix = f"flatout/{self._questions}"
        if how == "first":
            if self.first:
                store.set(prefix, repr(value))
            return self._read(store, prefix)
        store.set(f"{prefix}/{self.rank}", repr(value))
        values = [self._read(store, f"{prefix}/{rank}") for rank in range(self.world)]
        return max(values) if how == "max" else min(values)

    @staticmethod
    def _read(store: Any, key: str) -> float:
        store.wait([key], WAIT)
        return float(store.get(key))
