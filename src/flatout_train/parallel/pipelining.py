"""Pipeline parallel: consecutive blocks on each rank, micro-batches passing through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline

from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.errors import UsageError
from flatout_train.step.splitting import batch_size, split


class ModelPipeline:
    """One rank's stage of a model, and the step that all ranks make together."""

    def __init__(
        self,
        model: nn.Module,
        sample: Any,
        loss: Callable[..., Tensor],
        device: torch.device,
        micro_batches: int | None,
    ) -> None:
        """sample: `(inputs, targets)` of a whole batch. micro_batches: their number, or None for
        one per rank.
        """
        self._ranks, self._rank = dist.get_world_size(), dist.get_rank()
        self.micro_batches = micro_batches or self._ranks
        self._device = device
        inputs, _ = sample
        self._rows = batch_size(inputs)
        if self._rows % self.micro_batches:
            raise UsageError(
                f"a batch of {self._rows} samples cannot be divided into {self.micro_batches} "
                "equal micro-batches: use a multiple of it, or pass micro_batches="
            )
        example = split(inputs, self.micro_batches)[0]
        args = example if isinstance(example, tuple) else (example,)
        points = dict.fromkeys(_cuts(model, self._ranks), SplitPoint.BEGINNING)
        pipe = pipeline(model, mb_args=args, split_spec=points)
        self.module: nn.Module = pipe.get_stage_module(self._rank)
        self.module.to(device)
        stage = pipe.build_stage(self._rank, device=device)
        kind: Any = Schedule1F1B if self.micro_batches >= self._ranks else ScheduleGPipe
        self._schedule = kind(stage, self.micro_batches, loss_fn=loss)

    def step(self, inputs: Any, targets: Any) -> Tensor:
        """Forward and backward of a batch; the mean of its micro-batches' losses, on all ranks."""
        rows = batch_size(inputs)
        if rows != self._rows:
            raise UsageError(
                f"this pipeline takes batches of {self._rows} samples, as the sample had, not "
                f"{rows}: pass drop_last=True to the loader"
            )
        first, last = self._rank == 0, self._rank == self._ranks - 1
        args = (inputs if isinstance(inputs, tuple) else (inputs,)) if first else ()
        losses: list[Tensor] = []
        if last:
            self._schedule.step(*args, target=targets, losses=losses)
        else:
            self._schedule.step(*args)
        mean = torch.zeros((), device=self._device)
        if last:
            mean = torch.stack([loss.detach() for loss in losses]).mean().float()
        dist.broadcast(mean, src=self._ranks - 1)
        return mean


def _cuts(model: nn.Module, stages: int) -> list[str]:
    """Names of the blocks that begin a stage, with blocks divided as evenly as possible."""
    blocks = repeated_blocks(model)
    if len(blocks) < stages:
        raise UsageError(
            f"{type(model).__name__} has {len(blocks)} repeated blocks, too few for a pipeline of "
            f'{stages} stages: use fewer ranks, or plan="fsdp"'
        )
    names = {id(module): name for name, module in model.named_modules()}
    starts = [len(blocks) * stage // stages for stage in range(1, stages)]
    return [names[id(blocks[start])] for start in starts]
