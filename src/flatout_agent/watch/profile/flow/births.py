"""Tensors made from the host's own values, by `torch.from_numpy` and the like.

A `Flow` passes them on; `questions.host_constants` interprets them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.watch.profile.flow.records import FlowLine, Stack
from flatout_agent.watch.profile.modes import without_modes
from flatout_agent.watch.tensors import readable

LEAST_BYTES = 1024
"""The least bytes of a tensor, as few bytes may be equal by chance."""
MOST = 4096
"""The most tensors, and reads, that are recorded."""


@dataclass(frozen=True, slots=True)
class FlowBirth:
    """One tensor made from the host's values."""

    step: int
    line: FlowLine
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    digest: int | None
    """A hash of its values, or None if they cannot be compared or say nothing."""


class FlowBirths:
    """The tensors made from the host's values in the counted steps."""

    def __init__(self) -> None:
        self.births: list[FlowBirth] = []
        self.read_at: set[FlowLine] = set()
        """Lines on which the program reads values that change."""
        self.overflow = False

    def looks_at(self, tensor: Any) -> bool:
        """Whether the tensor is to be recorded."""
        self.overflow = self.overflow or len(self.births) >= MOST
        return type(tensor) is torch.Tensor and not self.overflow

    def born(self, step: int, chain: Stack, tensor: torch.Tensor, digest: int | None) -> None:
        """A tensor was made. digest: a hash of its storage's bytes."""
        if not chain:
            return
        size = tensor.numel() * tensor.element_size()
        telling = digest is not None and size >= LEAST_BYTES and _differs(tensor)
        self.births.append(
            FlowBirth(
                step,
                chain[0],
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                size,
                digest if telling else None,
            )
        )

    def leaves(self, chain: Stack) -> None:
        """The program reads a value that changes on this line."""
        if len(self.read_at) < MOST:
            self.read_at.update(chain[:1])


def _differs(tensor: torch.Tensor) -> bool:
    """Whether its numbers are not all equal: a mask that masks nothing says nothing."""
    if tensor.layout is not torch.strided or not readable(tensor):
        return False
    with without_modes(), torch.no_grad():
        return bool((tensor != tensor.reshape(-1)[0]).any())
