"""Inspects the objects that programs pass around: batches and model inputs, in any nest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.speedups import forward_state, nests
from flatout_agent.speedups.memory_counters import peak_resident_bytes, program_peak_bytes

if TYPE_CHECKING:
    from flatout_agent.job import Job

MAX_DEPTH = 6


def tensors_in(nest: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest, in order; a program's batches may contain themselves."""
    return nests.leaves(nest, lambda value: isinstance(value, torch.Tensor), MAX_DEPTH)


def readable(tensor: torch.Tensor) -> bool:
    """Whether its values can be read, which is not so on meta or while a CUDA graph is captured."""
    return not (tensor.is_meta or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()))


def samples_in(nest: Any) -> int:
    """First dimension of the first tensor that has one, or 0 if none has."""
    first = nest[0] if type(nest) in (list, tuple) and nest else nest
    if type(nest) is dict:
        first = next(iter(nest.values()), None)
    if type(first) is torch.Tensor and first.ndim:  # nearly always, and in every step
        return int(first.shape[0])
    for tensor in tensors_in(nest):
        if tensor.dim():
            return int(tensor.shape[0])
    return 0


def synchronize(job: Job) -> None:
    """Wait until the devices of the job's models have done all work given to them.

    torch itself waits for the current device, which need not be theirs.
    """
    if job.device == "mps":
        torch.mps.synchronize()
    elif job.device != "cpu":
        for device in _devices(job):
            getattr(torch, job.device).synchronize(device)


def peak_bytes(job: Job) -> int | None:
    """Peak memory in use so far: allocated on CUDA devices, resident on CPU; None if unknown."""
    if job.device == "cuda":
        return sum(map(program_peak_bytes, _devices(job)))
    if job.device == "cpu":
        return peak_resident_bytes()
    return None


def _devices(job: Job) -> list[torch.device] | list[None]:
    """The devices of the job's models; None, for the current device, if there are none."""
    return forward_state.devices(job.models) or [None]
