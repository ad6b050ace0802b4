"""The same loop under Hugging Face Accelerate, with its own bf16 and compile flags."""

from __future__ import annotations

from collections.abc import Iterator

from accelerate import Accelerator
from torch import Tensor

from loops.jobs import Job

WORKERS = 2


def steps(job: Job) -> Iterator[Tensor]:
    accelerator = Accelerator(mixed_precision="bf16", dynamo_backend="inductor")
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    loader = job.loader(num_workers=WORKERS, persistent_workers=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for batch in loader:
            loss = job.loss_fn(model, batch)
            accelerator.backward(loss)
            if job.clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()
