"""Memory that a program holds from step to step: weights, and what its optimizers remember."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flatout_agent.job import Job
from flatout_agent.watch.tensors import tensors_in


def parameter_bytes(job: Job) -> int:
    """Of all root models on the device that trains, buffers included."""
    tensors = (tensor for model in job.models for tensor in (*model.parameters(), *model.buffers()))
    return _bytes(tensors, job.device)


def optimizer_bytes(job: Job) -> int:
    """State of all optimizers on the device that trains: averages, not weights."""
    return _bytes(tensors_in([optimizer.state for optimizer in job.optimizers]), job.device)


def _bytes(tensors: Iterable[torch.Tensor], device: str) -> int:
    """Each tensor once. Of a tensor that lies on several devices, this process's part."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.device.type == device:
            sizes[id(tensor)] = local.numel() * local.element_size()
    return sum(sizes.values())
