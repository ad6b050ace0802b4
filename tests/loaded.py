"""Loaders under the agent, and all that a program can see of what they give."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from flatout_agent.job import Job


def start(job: Job, loader: Any) -> Iterator[Any]:
    """What `iter(loader)` does under the agent."""
    iterator = iter(loader)
    job.iterating(loader, iterator)
    return job.batches(loader, iterator)


def seen(value: Any) -> Any:
    """All that a program can see of a batch."""
    if isinstance(value, torch.Tensor):
        form = (
            value.dtype,
            value.shape,
            value.stride(),
            value.storage_offset(),
            value._base is None,
        )
        return (*form, value.requires_grad, value.reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.strides, value.flags.writeable, value.tobytes())
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value), [seen(item) for item in value])
    return (type(value), repr(value), value.tobytes() if hasattr(value, "tobytes") else None)


def epochs(boost: Any, make: Callable[[], Any], boosted: bool) -> tuple[list[Any], Any]:
    """Three epochs' batches, and all that the program draws in between; and what became of it."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    loader, job = make(), Job()
    applied = boost.apply(job, loader, {}) if boosted else None
    found: list[Any] = []
    for _ in range(3):
        found.append([seen(batch) for batch in start(job, loader)])
        found.append([torch.rand(2).tolist(), random.random(), np.random.rand()])
    said = applied.engaged() if applied is not None else None
    if applied is not None:
        getattr(boost, "forget", lambda job: None)(job)
        applied.undo()
    return found, said


def told(boost: Any, make: Callable[[], Any]) -> Any:
    """What became of it, the epochs being the same as without."""
    expected, _ = epochs(boost, make, boosted=False)
    found, said = epochs(boost, make, boosted=True)
    assert found == expected
    return said
