"""Gradients that are exchanged as one message: copied into a flat tensor, summed, copied back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from flatout_agent.ranks.group import RankGroup

BUCKET_BYTES = 64 * 2**20
"""The most bytes of a message: a copy of all gradients at once would cost their memory."""


class ParameterKind(NamedTuple):
    """The form of a parameter's gradient, known even when the parameter is gone."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class GradientBucket:
    """Parameters of one type on one device whose gradients are exchanged together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.numbers: list[int] = []
        self.shapes: list[torch.Size] = []
        self.count = 0
        """Values of all gradients."""

    def add(self, number: int, shape: torch.Size) -> None:
        """Add a parameter, identified by its number."""
        self.numbers.append(number)
        self.shapes.append(shape)
        self.count += shape.numel()

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize

    def averages(
        self, group: RankGroup, gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """The ranks' averages of these gradients; None where this rank has no such gradient."""
        flat = torch.empty(self.count, dtype=self.dtype, device=self.device)
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        places = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        filled = []
        for place, gradient in zip(places, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                filled.append(place)
        if filled:
            torch._foreach_copy_(filled, [each for each in gradients if each is not None])
        if self.count:
            group.sum_(torch.view_as_real(flat) if flat.is_complex() else flat)
            flat /= group.size
        return places
