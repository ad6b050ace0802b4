"""The loop of an ordinary user, as most tutorials have it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loops.jobs import Job


def steps(job: Job) -> Iterator[float]:
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    loader = job.loader()
    while True:
        for batch in loader:
            optimizer.zero_grad()
            loss = job.loss_fn(model, batch)
            loss.backward()
            if job.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            yield loss.item()
