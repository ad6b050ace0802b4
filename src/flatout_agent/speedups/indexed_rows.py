"""Rows picked and summed by an index, as in message passing on a graph.

`SortedIndices` puts the places of an index in order once it meets the index again in a later step:
then the sum is a pass over whole rows of the result, which several threads share, in place of
additions to rows here and there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

REMEMBERED = 8
"""Indices of either kind that are compared with the next one."""
HOPELESS = 500
"""After so many indices that were never met again, none is remembered any more."""


@dataclass(frozen=True)
class SortedIndex:
    """Where the rows lie that are added to each row of the result."""

    index: torch.Tensor
    rows: int
    places: torch.Tensor
    """Places in the index, those with the lowest entry first; of the same entry as they came."""
    begins: torch.Tensor
    """Where the places of each row of the result begin, and where the last ones end."""


class SortedIndices:
    """The indices that the program has used lately."""

    def __init__(self) -> None:
        self._known: list[SortedIndex] = []
        self._met: list[tuple[torch.Tensor, int]] = []
        """Copies of indices, and the step in which each was met first."""
        self._in_vain = 0

    def of(self, index: torch.Tensor, rows: int, step: int) -> SortedIndex | None:
        """The order of this index, or None if it was not met in an earlier step."""
        import torch

        for order in self._known:
            if order.rows == rows and torch.equal(order.index, index):
                return order
        for number, (earlier, first_step) in enumerate(self._met):
            if torch.equal(earlier, index):
                if first_step == step:
                    return None
                del self._met[number]
                return self._ordered(earlier, rows)
        self._in_vain += 1
        if self._in_vain < HOPELESS:
            with torch.no_grad():
                self._met = [(index.detach().clone(), step), *self._met[: REMEMBERED - 1]]
        else:
            self._met = []
        return None

    def _ordered(self, index: torch.Tensor, rows: int) -> SortedIndex | None:
        import torch

        counts = torch.bincount(index, minlength=rows)
        if len(counts) != rows:
            return None  # as written it raises
        begins = torch.zeros(rows + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=begins[1:])
        order = SortedIndex(index, rows, torch.argsort(index, stable=True), begins)
        self._known = [order, *self._known[: REMEMBERED - 1]]
        self._in_vain = 0
        return order


class RowSums:
    """Picks rows, and sums them, with gradients of any order."""

    def __init__(self) -> None:
        self.orders = SortedIndices()
        self.steps: Callable[[], int] = lambda: 0
        """How many steps the program has taken."""
        self.picked = self.summed = 0

    def pick(self, rows: torch.Tensor, index: torch.Tensor) -> Any:
        """`rows[index]`. Raises IndexError for an index that is negative or too large."""
        self.picked += 1
        return _nodes()[0].apply(rows, index, self)

    def sum(self, values: torch.Tensor, index: torch.Tensor, rows: int) -> Any:
        """A matrix of so many rows, of which row `index[i]` is the sum of all such `values[i]`."""
        return _nodes()[1].apply(values, index, rows, self)

    def summed_now(self, values: torch.Tensor, index: torch.Tensor, rows: int) -> Any:
        """The sum, without a gradient."""
        import torch

        order = self.orders.of(index, rows, self.steps())
        if order is None:
            zeros = values.new_zeros(rows, values.shape[1])
            return torch.ops.aten.index_add_(zeros, 0, index, values)
        self.summed += 1
        return torch.ops.aten._embedding_bag_forward_only(
            values.contiguous(), order.places, order.begins, False, 0, False, None, True
        )[0]


@functools.cache
def _nodes() -> tuple[Any, Any]:
    import torch

    class Pick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor, index: torch.Tensor, rows: RowSums) -> Any:
            ctx.save_for_backward(index)
            ctx.count, ctx.rows = len(values), rows
            return torch.ops.aten.index_select(values, 0, index)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (index,) = ctx.saved_tensors
            return ctx.rows.sum(gradients[0], index, ctx.count), None, None

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, values: torch.Tensor, index: torch.Tensor, count: int, rows: RowSums
        ) -> Any:
            ctx.save_for_backward(index)
            ctx.rows = rows
            return rows.summed_now(values, index, count)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (index,) = ctx.saved_tensors
            return ctx.rows.pick(gradients[0], index), None, None, None

    return Pick, Sum
