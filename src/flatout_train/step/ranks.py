"""Other processes that train the same model: DistributedDataParallel and FSDP2 (`fully_shard`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Ranks:
    """The ranks that share one model's gradient.

    Both wrappers average gradients over the ranks. Batches may differ in weight, so each rank's
    loss is scaled such that the average is the weighted mean.
    """

    def __init__(self, group: Any, replicas: list[Any], sharded: list[Any]) -> None:
        self._group = group
        self._replicas, self._sharded = replicas, sharded
        self.world = dist.get_world_size(group)

    @property
    def can_reduce(self) -> bool:
        """Whether unsynchronised gradients are in `.grad`, where they can be reduced by hand.

        FSDP2 keeps them unsharded in internal buffers.
        """
        return not self._sharded

    def context(self, last: bool) -> AbstractContextManager[Any]:
        """The region of one micro-batch: gradients are synchronised only in the last one."""
        for module in self._sharded:
            module.set_requires_gradient_sync(last)
        if last or not self._replicas:
            return contextlib.nullcontext()
        stack = ExitStack()
        for module in self._replicas:
            stack.enter_context(module.no_sync())
        return stack

    def start_sum(self, value: float | Tensor, device: torch.device) -> Callable[[], Tensor]:
        """Start to sum `value` over the ranks.

        The returned function returns the sum (0-d, float64, or float32 where the device has no
        float64); the device waits for it, not the host.
        """
        wide = torch.float32 if device.type == "mps" else torch.float64
        if isinstance(value, Tensor):
            total = value.detach().to(device, wide, copy=True)
        else:
            total = torch.full((), value, dtype=wide, device=device)
        work = dist.all_reduce(total, group=self._group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return total

        return wait

    def largest(self, value: float, device: torch.device) -> float:
        """The maximum of `value` over all ranks (in float32); waits for the device."""
        maximum = torch.full((), value, dtype=torch.float32, device=device)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=self._group)
        return float(maximum.item())

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Do by hand what the synchronised backward pass does, for an incomplete group."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        if not trainable:
            return
        device = trainable[0].device
        has_gradient = torch.tensor(
            [parameter.grad is not None for parameter in trainable], dtype=torch.int32
        )
        has_gradient = has_gradient.to(device)
        dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX, group=self._group)
        works = []
        for parameter, has_gradient_anywhere in zip(trainable, has_gradient.tolist(), strict=True):
            if not has_gradient_anywhere:
                continue  # no rank used it: it has no gradient
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(self.world)
            works.append(dist.all_reduce(parameter.grad, group=self._group, async_op=True))
        for work in works:
            work.wait()


def of(model: nn.Module) -> Ranks | None:
    """The ranks of this model, or None if only this process trains it."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    modules = list(model.modules())
    replicas = [module for module in modules if isinstance(module, DistributedDataParallel)]
    sharded = [module for module in modules if isinstance(module, FSDPModule)]
    if sharded:
        outer = model if isinstance(model, FSDPModule) else None
        return Ranks(None, replicas, [outer] if outer is not None else sharded)
    if replicas:
        return Ranks(replicas[0].process_group, replicas, [])
    return None
