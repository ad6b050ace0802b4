"""The same loop under Lightning Fabric, with its own bf16 flag, compiled as its docs say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lightning.fabric import Fabric
from torch import Tensor

from loops.jobs import Job

WORKERS = 2


def steps(job: Job) -> Iterator[Tensor]:
    fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.launch()
    model = torch.compile(job.model())
    optimizer = job.optimizer(model.parameters())
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(job.loader(num_workers=WORKERS, persistent_workers=True))
    while True:
        for batch in loader:
            loss = job.loss_fn(model, batch)
            fabric.backward(loss)
            if job.clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=job.clip)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()
