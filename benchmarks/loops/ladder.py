"""The way from the naive loop to flatout's, one line at a time: docs/from-the-naive-loop.md.

Each rung is the one before with one line changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from loops import flatout_loop, naive
from loops.jobs import Job

AS_WRITTEN = {"precision": "fp32", "layout": "contiguous", "compile": False}
"""What the step does not choose yet, on the rung where it comes in."""
RUNGS = {
    "resnet": ("naive", "loader", "step", "layout", "precision", "compile"),
    "gpt": ("naive", "loader", "step", "precision", "compile"),
}
"""Layout is for convolutions."""


def steps(job: Job, rung: str) -> Iterator[Tensor | float]:
    """The loop on that rung."""
    if rung == "naive":
        return naive.steps(job)
    if rung == "loader":
        return with_loader(job)
    return flatout_loop.steps(job, **left_as_written(rung))


def left_as_written(rung: str) -> dict[str, Any]:
    """The options that are given on that rung: each later one leaves one more to flatout."""
    if rung == "compile":
        return {"compile": True}
    order = RUNGS["resnet"]
    later = order[order.index(rung) + 1 :]
    return {name: value for name, value in AS_WRITTEN.items() if name in later}


def with_loader(job: Job) -> Iterator[float]:
    """The naive loop, its data from flatout."""
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    loader = flatout_loop.make_loader(job)
    while True:
        for batch in loader:
            optimizer.zero_grad()
            loss = job.loss_fn(model, batch)
            loss.backward()
            if job.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            yield loss.item()
