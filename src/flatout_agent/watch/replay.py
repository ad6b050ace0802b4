"""Give a trial the very batches that the baseline saw in its first steps.

Loader workers draw other random numbers than the main process does, so a trial with workers would
see other augmentations. The baseline writes down what each loader gave until the guard steps were
over; in a trial the loader still fetches its own batch (the order of the data stays in step) and
the program gets the recorded one.
"""

from __future__ import annotations

import os
from typing import Any

from flatout_agent import wire
from flatout_agent.job import Job
from flatout_agent.watch.tensors import tensors_in

MOST_BYTES = 2 << 30
"""Recording stops here; later guard steps then cannot be compared, and are not."""


class Replay:
    """Records in the baseline, replays in a trial; over when the guard steps are."""

    def __init__(self, job: Job, orders: wire.TrialOrders, folder: str) -> None:
        self.job = job
        self.orders = orders
        self.folder = folder
        self.over = orders.guard_steps == 0
        self._given: dict[int, int] = {}
        self._bytes = 0

    def batch(self, loader: Any, batch: Any) -> Any:
        """What the program gets in place of `batch`."""
        if self.over:
            return batch
        number = self.job.loaders.index(loader)
        position = self._given.get(number, 0)
        self._given[number] = position + 1
        name = f"batch-{os.environ.get('RANK', '0')}-{number}-{position}.pt"
        if self.orders.reference is None:
            self._record(os.path.join(self.folder, name), batch)  # noqa: PTH118
            return batch
        return self._recorded(os.path.join(self.orders.reference, name), loader, batch)  # noqa: PTH118

    def _record(self, path: str, batch: Any) -> None:
        """Written at once: the program may change the batch in place."""
        tensors = tensors_in(self.job.torch, batch)
        self._bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self._bytes <= MOST_BYTES:
            with open(path, "wb") as file:  # noqa: PTH123
                self.job.torch.save(batch, file)

    def _recorded(self, path: str, loader: Any, batch: Any) -> Any:
        if not os.path.exists(path):  # noqa: PTH110
            return batch
        torch = self.job.torch
        with open(path, "rb") as file:  # noqa: PTH123
            recorded = torch.load(file, weights_only=False)
        if getattr(loader, "pin_memory", False) and torch.cuda.is_available():
            return torch.utils.data._utils.pin_memory.pin_memory(recorded)
        return recorded
