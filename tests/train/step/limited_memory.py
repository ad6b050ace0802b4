"""A device whose memory ends: activations of `Held` layers count, as long as torch keeps them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn


class Memory:
    """Raises torch's own error where more than `limit` elements would be held at once."""

    def __init__(self, limit: float) -> None:
        self.limit, self.held, self.peak = limit, 0, 0

    def take(self, like: Tensor) -> Tensor:
        """A tensor of the size of `like` that counts until its storage is freed."""
        if self.held + like.numel() > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {like.numel()}")
        taken = torch.empty_like(like)
        self.held += like.numel()
        self.peak = max(self.peak, self.held)
        weakref.finalize(taken.untyped_storage(), self._free, like.numel())
        return taken

    def _free(self, size: int) -> None:
        self.held -= size


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, memory: Memory) -> Tensor:
        ctx.save_for_backward(memory.take(x))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        assert ctx.saved_tensors
        return grads[0], None


class Held(nn.Module):
    """Passes its input through and keeps as much memory for the backward pass."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: Tensor) -> Tensor:
        return _Hold.apply(x, self.memory)  # type: ignore[no-any-return]


class Block(nn.Module):
    """A residual block that holds three activations."""

    def __init__(self, width: int, memory: Memory, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, width),
            Held(memory),
            nn.Tanh(),
            Held(memory),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            Held(memory),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Blocks(nn.Module):
    """Repeated blocks and a head."""

    def __init__(self, memory: Memory, count: int = 4, width: int = 8, dropout: float = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, memory, dropout) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]
