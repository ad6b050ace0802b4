"""Memory that a program holds from step to step: weights and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flatout_agent.job import Job
from flatout_agent.watch.tensors import tensors_in


def parameter_bytes(job: Job) -> int:
    """Bytes of all root models on the training device, including buffers."""
    tensors = (tensor for model in job.models for tensor in (*model.parameters(), *model.buffers()))
    return _bytes(tensors, job.device)


def optimizer_bytes(job: Job) -> int:
    """Bytes of all optimizers' state on the training device: averages, not weights."""
    return _bytes(tensors_in([optimizer.state for optimizer in job.optimizers]), job.device)


def _bytes(tensors: Iterable[torch.Tensor], device: str) -> int:
    """Bytes of these tensors, each once; for a tensor on several devices, this process's part."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.device.type == device:
            sizes[id(tensor)] = local.numel() * local.element_size()
    return sum(sizes.values())
