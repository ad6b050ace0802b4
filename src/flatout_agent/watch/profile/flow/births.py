"""Tensors that are made of the host's own values, by `torch.from_numpy` and its like.

A `Flow` passes them on; what they mean is read by `questions.host_constants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.watch.profile.flow.records import FlowLine, Stack
from flatout_agent.watch.profile.modes import without_modes
from flatout_agent.watch.tensors import readable

LEAST_BYTES = 1024
"""Few bytes may be equal by chance."""
MOST = 4096
"""Tensors, and reads, that are noted."""


@dataclass(frozen=True, slots=True)
class FlowBirth:
    """One tensor made of the host's values."""

    step: int
    line: FlowLine
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    digest: int | None
    """None: its values cannot be compared, or say nothing."""


class FlowBirths:
    """Those of the counted steps."""

    def __init__(self) -> None:
        self.births: list[FlowBirth] = []
        self.read_at: set[FlowLine] = set()
        """Lines on which the program reads values that change."""
        self.overflow = False

    def looks_at(self, tensor: Any) -> bool:
        """Whether it is one that is noted."""
        self.overflow = self.overflow or len(self.births) >= MOST
        return type(tensor) is torch.Tensor and not self.overflow

    def born(self, step: int, chain: Stack, tensor: torch.Tensor, digest: int | None) -> None:
        """A tensor was made. digest: of its storage's bytes."""
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
        """The program reads a value that changes, here."""
        if len(self.read_at) < MOST:
            self.read_at.update(chain[:1])


def _differs(tensor: torch.Tensor) -> bool:
    """Whether not all its numbers are equal: a mask that nothing has met yet says nothing."""
    if tensor.layout is not torch.strided or not readable(tensor):
        return False
    with without_modes(), torch.no_grad():
        return bool((tensor != tensor.reshape(-1)[0]).any())
