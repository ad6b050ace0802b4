"""What the pulse of a program under `flatout run` cannot see of a loop that the library owns."""

from __future__ import annotations

import contextlib

import torch

from flatout_agent.watch import beat
from flatout_agent.wire import pulse as layout


def replayed(loss: torch.Tensor) -> None:
    """The step about to be counted was a replay, without a call of `backward`."""
    if beat.of_process is not None:
        beat.of_process.loss_seen(loss)


def saving() -> None:
    """The library begins to save."""
    if beat.of_process is not None:
        beat.of_process.pulse.flags |= layout.SAVED


def saved(size_bytes: int) -> None:
    """The library has written a checkpoint of this size."""
    if beat.of_process is not None:
        with contextlib.suppress(Exception):
            beat.of_process.pulse.has_saved(size_bytes)
