"""The whole model on each rank, or a shard of it: DistributedDataParallel and FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.errors import UsageError
from flatout_train.parallel import ownership


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The whole model on each rank; gradients are averaged while the backward pass goes on."""
    model.to(device)
    ids = [device] if device.type != "cpu" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def shard(model: nn.Module, mesh: DeviceMesh, methods: Sequence[str] = ()) -> None:
    """Shard parameters, gradients and optimizer state over a mesh; a 2-D mesh replicates over its
    first dimension.

    The repeated blocks are gathered one by one, everything else at once. A block that shares
    parameters with other modules is gathered with the rest, and parameters without a dimension stay
    whole: their gradients are averaged once they exist. `methods` are called like `forward`.
    """
    whole = ownership.scalars(model)
    blocks = ownership.self_contained(model, repeated_blocks(model))
    for module in (*blocks, model):
        _check_types(module, whole)
    options: dict[str, Any] = {"ignored_params": whole} if whole else {}
    for block in blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for name in methods:
        register_fsdp_forward_method(model, name)
    device = torch.device(mesh.device_type)
    parameter: Any  # torch's hook has no types
    for parameter in whole:
        parameter.data = parameter.data.to(device)
        parameter.register_post_accumulate_grad_hook(averaged())


def send_from_first(model: nn.Module, device: torch.device) -> None:
    """Give every rank the parameters and buffers of rank 0, one after the other.

    The model may be on the host: each tensor is on the device only while it is sent.
    """
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.detach().to(device)
            if not sent.is_contiguous():
                sent = sent.contiguous()
            dist.broadcast(sent, src=0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)


def averaged(group: Any = None) -> Callable[[Tensor], None]:
    """A hook that averages a gradient over the ranks once it exists.

    Averaging twice changes nothing, so accumulated gradients come out right too.
    """

    def average(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.div_(dist.get_world_size(group))
            dist.all_reduce(parameter.grad, group=group)

    return average


def _check_types(module: nn.Module, whole: set[nn.Parameter]) -> None:
    types = {
        str(parameter.dtype)
        for parameter in module.parameters()
        if parameter not in whole and parameter.is_floating_point()
    }
    if len(types) > 1:
        raise UsageError(
            f"{type(module).__name__} has parameters of {' and '.join(sorted(types))}, and FSDP "
            'gathers one type only: convert the model to one, or pass plan="dp"'
        )
