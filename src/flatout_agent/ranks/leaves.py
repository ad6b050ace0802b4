"""Inputs and outputs of a model's call as lists of tensors, and how to cut them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from flatout_agent.ranks import rows
from flatout_agent.ranks.rows import Split

MOST_HYPOTHESES = 5


class Inputs(NamedTuple):
    """Arguments of a call, taken apart."""

    leaves: list[Any]
    spec: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The leaves of a call with these arguments."""
        return cls(*pytree.tree_flatten((args, kwargs)))

    def key(self) -> Any:
        """A key that is the same for calls that can be cut in the same way, regardless of batch
        size.
        """
        kinds = tuple(
            (leaf.ndim, leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else type(leaf)
            for leaf in self.leaves
        )
        return kinds, self.spec

    def cut(self, dims: tuple[int | None, ...], split: Split) -> tuple[Any, Any]:
        """The arguments with only this rank's rows: (args, kwargs)."""
        leaves = [_part(leaf, dim, split) for leaf, dim in zip(self.leaves, dims, strict=True)]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def whole(self) -> tuple[Any, Any]:
        """The arguments unchanged: (args, kwargs)."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs

    def rows(self, dims: tuple[int | None, ...]) -> int | None:
        """Rows of this batch, or None if its tensors do not agree."""
        counts = {
            leaf.shape[dim] for leaf, dim in zip(self.leaves, dims, strict=True) if dim is not None
        }
        return counts.pop() if len(counts) == 1 else None

    def has_rows(self, least: int) -> bool:
        """Whether the first tensor may be a batch of this many rows."""
        shapes = (
            leaf.shape for leaf in self.leaves if isinstance(leaf, torch.Tensor) and leaf.ndim
        )
        first = next(shapes, None)
        return first is not None and first[0] >= least

    def hypotheses(self, least: int) -> Iterator[tuple[int | None, ...]]:
        """Dimensions that may be the batch's, likeliest first. least: the fewest rows."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
        tried: list[tuple[int | None, ...]] = []
        for dim in (0, 1):
            sizes = [tensor.shape[dim] for tensor in tensors if tensor.ndim > dim]
            for size in dict.fromkeys(size for size in sizes if size >= least):
                for square in (True, False):  # a mask may be as long as the batch is large
                    dims = tuple(_batch_dim(leaf, dim, size, square) for leaf in self.leaves)
                    if dims not in tried and any(each is not None for each in dims):
                        tried.append(dims)
        yield from tried[:MOST_HYPOTHESES]


def _part(leaf: Any, dim: int | None, split: Split) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return rows.shared(leaf, split) if dim is None else rows.own(leaf, dim, split)


def _batch_dim(leaf: Any, dim: int, size: int, square: bool) -> int | None:
    if not isinstance(leaf, torch.Tensor) or not leaf.ndim:
        return None
    if leaf.ndim == 2 and leaf.shape[0] == leaf.shape[1] and not square:
        return None
    if leaf.ndim > dim and leaf.shape[dim] == size:
        return dim
    return next((each for each, length in enumerate(leaf.shape) if length == size), None)


class Output(NamedTuple):
    """How one returned tensor is formed from the ranks' parts."""

    how: str
    """rows: joined along `dim`; mean: weighted by rows; sum; same: every rank has it."""
    dim: int = 0
    factor: int = 1
    """Length along `dim` of each row of the batch."""
    graph: bool = False
    """Whether gradients go back through it in all ranks, even if the rows of one take a branch
    without gradients.
    """

    def whole(self, part: torch.Tensor, split: Split) -> torch.Tensor:
        """The whole tensor, from this rank's part."""
        if self.graph and not part.requires_grad and torch.is_grad_enabled():
            part = part.detach().requires_grad_()
        if self.how == "rows":
            return rows.joined(part, self.dim, split.times(self.factor))
        if self.how == "mean":
            return rows.summed(part, split.count / split.rows, split)
        if self.how == "sum":
            return rows.summed(part, 1.0, split)
        return part


def candidates(whole: torch.Tensor, part: torch.Tensor, split: Split) -> list[Output]:
    """How `whole` may be formed from the ranks' parts, judged by the shape of this rank's."""
    if whole.ndim != part.ndim or whole.dtype != part.dtype:
        return []
    other = [dim for dim in range(whole.ndim) if whole.shape[dim] != part.shape[dim]]
    if not other:
        return [Output("same"), Output("mean"), Output("sum")]
    dim = other[0]
    factor, rest = divmod(whole.shape[dim], split.rows)
    if len(other) > 1 or rest or part.shape[dim] != factor * split.count:
        return []
    return [Output("rows", dim, factor)]


def flat(output: Any) -> tuple[list[Any], Any]:
    """The leaves of what a call has returned, and their structure."""
    leaves, spec = pytree.tree_flatten(output)
    return leaves, spec


def unflat(leaves: list[Any], spec: Any) -> Any:
    """The structure again."""
    return pytree.tree_unflatten(leaves, spec)
