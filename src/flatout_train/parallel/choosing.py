"""The choice of strategy: the first whose estimate fits, reported with the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout_agent import parallelism
from flatout_agent.parallelism import Devices, Need, Strategy
from flatout_train.errors import UsageError
from flatout_train.memory import counters
from flatout_train.parallel.estimating import estimate
from flatout_train.sizes import size


def choose(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    loss: Callable[..., Tensor] | None,
    places: Devices,
    divisible: bool,
) -> tuple[Strategy, tuple[Need, ...]]:
    """The first strategy that fits, the same on all ranks, and the needs of each.

    divisible: whether the matrix products of the model's blocks can be divided.
    """
    if sample is None:
        raise UsageError(
            'plan="auto" estimates the memory of a step: pass sample=, one rank\'s batch, or name '
            'the strategy: plan="fsdp"'
        )
    seen = estimate(model, optimizer, sample, loss, places.count)
    tried = [
        strategy
        for strategy in parallelism.strategies(seen, places)
        if divisible or strategy is not Strategy.TP
    ]
    needs = tuple(parallelism.need(seen, places, strategy) for strategy in tried)
    chosen = parallelism.choice([need for need in needs if need.strategy is not Strategy.PP])
    if dist.is_initialized() and places.count > 1:  # samples may differ between the ranks
        found = [chosen.strategy.value if chosen is not None else None]
        dist.broadcast_object_list(found, src=0)
        chosen = next((need for need in needs if need.strategy.value == found[0]), None)
    if chosen is None:
        raise UsageError(_too_large(needs))
    return chosen.strategy, needs


def why(strategy: Strategy, needs: tuple[Need, ...]) -> str:
    """One line for each strategy up to the one that fits, with the memory it needs on
    each device.
    """
    lines = []
    for need in needs:
        lines.append(_told(need))
        if need.strategy is strategy:
            break
    return "\n".join(lines)


def memory_of(device: torch.device, processes: int) -> int:
    """Bytes that one process may use: the device's, or on the CPU its part of the
    available memory.
    """
    found = counters.read(device)
    if device.type != "cpu":
        if found.total is None:
            raise UsageError(f"the memory of {device} is not known: pass memory= in bytes")
        return found.total
    available = found.free if found.free is not None else found.total
    if available is None:
        raise UsageError("the available memory is not known here: pass memory= in bytes")
    return available // processes


def _told(need: Need) -> str:
    parts = (
        f"weights {size(need.parameters)}",
        f"gradients {size(need.gradients)}",
        f"optimizer state {size(need.state)}",
        f"activations {size(need.activations)}",
    )
    verdict = "fits into" if need.fits else "does not fit into"
    return (
        f"{need.strategy.value} {verdict} {size(need.memory_bytes)}: at most {size(need.peak)} at "
        f"once, and a margin of {size(need.margin)} ({', '.join(parts)})"
    )


def _too_large(needs: tuple[Need, ...]) -> str:
    told = "\n  ".join(map(_told, needs))
    cure = "use smaller batches or more devices"
    if any(need.strategy is Strategy.PP and need.fits for need in needs):
        cure = 'a pipeline would fit: plan="pp", whose step runs forward and backward by itself'
    return f"no strategy fits into the devices' memory: {cure}\n  {told}"
