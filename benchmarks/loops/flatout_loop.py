"""The same loop with flatout, everything as it chooses: as in the recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor

import flatout
from loops.jobs import JITTER, Job


def steps(job: Job, variant: str = "", **options: Any) -> Iterator[Tensor]:
    """`options`: of `flatout.train_step`, where something is not to be chosen.

    Variant "compiled": for a training that is long enough to pay for compiling.
    """
    if variant == "compiled":
        options["compile"] = True
    model = job.model().to(flatout.device())
    optimizer = job.optimizer(model.parameters())
    step = flatout.train_step(model, job.loss_fn, optimizer, clip_norm=job.clip, **options)
    loader = make_loader(job)
    first = True
    while True:
        for batch in loader:
            yield step(batch)
            if first:
                sys.stderr.write(f"{step.notes} {loader.notes}\n")
                first = False


def make_loader(job: Job) -> Any:
    if job.pictures is None:
        return flatout.loader(job.dataset, job.batch, sampler=job.order, drop_last=True)
    return flatout.image_loader(job.pictures, job.batch, size=job.size, color_jitter=JITTER)
