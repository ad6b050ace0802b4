"""Splitting a batch into the ranks' rows and joining them, both ways through autograd.

The backward of each of these consists of the others, so gradients of gradients are right too.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from flatout_agent.ranks.group import RankGroup


class Split:
    """How many rows of a batch each rank has."""

    def __init__(self, group: RankGroup, counts: list[int]) -> None:
        self.group = group
        self.counts = counts
        self.rows = sum(counts)
        self.begin = [0, *accumulate(counts)][group.rank]
        self.count = counts[group.rank]

    @classmethod
    def even(cls, group: RankGroup, rows: int) -> Split:
        """A split as even as possible, larger parts first."""
        least, more = divmod(rows, group.size)
        return cls(group, [least + (rank < more) for rank in range(group.size)])

    @classmethod
    def uneven(cls, group: RankGroup, rows: int) -> Split:
        """A split into parts of different length, if there are enough rows: a mean of means is then
        no mean.
        """
        counts = cls.even(group, rows).counts
        moved = min(counts[-1] - 1, max(1, counts[-1] // 3))
        counts[0] += moved
        counts[-1] -= moved
        return cls(group, counts)

    def times(self, factor: int) -> Split:
        """The split of a dimension `factor` times as long."""
        return Split(self.group, [factor * count for count in self.counts])


def own(whole: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
    """The rows of this rank, of a tensor that all ranks have."""
    if whole.requires_grad and torch.is_grad_enabled():
        return _Own.apply(whole, dim, split)  # type: ignore[no-any-return, no-untyped-call]
    return whole.narrow(dim, split.begin, split.count)


def joined(part: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
    """All ranks' rows."""
    if part.requires_grad and torch.is_grad_enabled():
        return _Joined.apply(part, dim, split)  # type: ignore[no-any-return, no-untyped-call]
    return split.group.joined(part, dim, split.counts)


def summed(part: torch.Tensor, weight: float, split: Split) -> torch.Tensor:
    """The sum over the ranks of `weight * part`."""
    if part.requires_grad and torch.is_grad_enabled():
        return _Summed.apply(part, weight, split)  # type: ignore[no-any-return, no-untyped-call]
    if part.is_floating_point() or part.is_complex():
        part = part * weight
    return split.group.sum_(part.clone(memory_format=torch.contiguous_format))


def shared(value: torch.Tensor, split: Split) -> torch.Tensor:
    """A tensor that all ranks have and use unchanged: its gradient is the mean of theirs."""
    if value.requires_grad and torch.is_grad_enabled():
        return _Shared.apply(value, split.group)  # type: ignore[no-any-return, no-untyped-call]
    return value


def mean_gradient(gradient: torch.Tensor, group: RankGroup) -> torch.Tensor:
    """The true gradient, from what each rank has computed of it."""
    if gradient.requires_grad and torch.is_grad_enabled():
        return _Mean.apply(gradient, group)  # type: ignore[no-any-return, no-untyped-call]
    return group.sum_(gradient.clone(memory_format=torch.contiguous_format)) / group.size


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
        ctx.dim, ctx.split = dim, split
        return whole.narrow(dim, split.begin, split.count).clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return joined(gradient, ctx.dim, ctx.split) / ctx.split.group.size, None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
        ctx.dim, ctx.split = dim, split
        return split.group.joined(part, dim, split.counts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return own(gradient, ctx.dim, ctx.split) * ctx.split.group.size, None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, weight: float, split: Split) -> torch.Tensor:
        ctx.weight, ctx.split = weight, split
        return split.group.sum_((part * weight).contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _Spread.apply(gradient, ctx.weight, ctx.split), None, None  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, weight: float, split: Split) -> torch.Tensor:
        ctx.weight, ctx.split = weight, split
        return gradient * (weight * split.group.size)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return summed(gradient, ctx.weight, ctx.split), None, None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        return group.sum_(gradient.clone(memory_format=torch.contiguous_format)) / group.size

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return mean_gradient(gradient, ctx.group), None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return mean_gradient(gradient, ctx.group), None
