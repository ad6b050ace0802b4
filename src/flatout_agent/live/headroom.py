"""Whether a GPU has room for what the Guard keeps in addition to the program's tensors.

The Guard keeps it while the program's own forward and backward pass, or its update, takes the most
memory. A program that fills its GPU would run out of memory in its own code and end. Host memory
can be overcommitted; other accelerators report too little about theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from flatout_agent.live.calls import RecordedCall, differentiable, kept_beside
from flatout_agent.speedups import own_hooks
from flatout_agent.speedups.memory_counters import unused_bytes

TOO_LITTLE = "too little GPU memory to compare"
# Older releases have the second one only.
OUT_OF_MEMORY: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
LIMITED = ("cuda",)
"""The kinds of devices that are checked."""
OF_A_CALL = 4
"""Copies of outputs and of parameters. Outputs: those of the call and their gradients, and the same
for the call repeated both ways. Parameters: shifted weights, and the gradients of three calls."""
OF_AN_UPDATE = 7
"""Copies of parameters: each with two states, before and after the update, and the updates."""


def lack_for_call(
    model: torch.nn.Module,
    output: Any = None,
    waiting: Iterable[RecordedCall] = (),
    shown: own_hooks.Shown | None = None,
) -> str | None:
    """Why a call of this model with this output is not kept, or None if there is room.

    waiting: calls already kept that await their gradients. shown: what the program's hooks were
    given.
    """
    waiting_outputs = [tensor for recorded in waiting for tensor in recorded.outputs]
    returned = differentiable(output)
    kept, _ = kept_beside(model, returned, shown or own_hooks.Shown())
    return _lack([*model.parameters(), *returned, *kept.values(), *waiting_outputs], OF_A_CALL)


def lack_for_update(optimizer: torch.optim.Optimizer) -> str | None:
    """Why weights and state of this optimizer are not kept, or None if there is room."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return _lack(parameters, OF_AN_UPDATE)


def _lack(tensors: Iterable[torch.Tensor], copies: int) -> str | None:
    needed_bytes: dict[torch.device, int] = {}
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # of a sharded one
        if local.device.type in LIMITED:
            size_bytes = copies * local.numel() * local.element_size()
            needed_bytes[local.device] = needed_bytes.get(local.device, 0) + size_bytes
    fits = all(unused_bytes(device) >= size_bytes for device, size_bytes in needed_bytes.items())
    return None if fits else TOO_LITTLE
