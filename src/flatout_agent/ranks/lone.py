"""A rank that rehearses alone: it computes its own rows, and what others would send is its own.

The steps take what those of one rank of many take, but for the exchange. What they compute is
nobody's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup, Sent


class LoneGroup(RankGroup):
    """As a group of `size` ranks would look to one of them."""

    alone = True

    def __init__(self, orders: wire.RankOrders, lost: object = None) -> None:
        self.rank, self.size = orders.rank, orders.size
        self.sent = Sent()

    @property
    def backend(self) -> str:
        """Nothing is exchanged."""
        return ""

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        self.sent.messages += 1
        self.sent.summed_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """As if all ranks had the same."""
        return self._reduce(tensor, None).mul_(self.size)

    def joined(self, part: torch.Tensor, dim: int, counts: Sequence[int]) -> torch.Tensor:
        """Own rows, again and again."""
        self.sent.messages += 1
        self.sent.joined_bytes += part.numel() * part.element_size()
        rows = torch.arange(sum(counts), device=part.device) % max(1, part.shape[dim])
        return part.index_select(dim, rows)

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """It is rank 0's already."""

    def agreed(self, holds: bool) -> bool:
        """There is nobody to disagree."""
        return holds

    def equal(self, *values: float) -> bool:
        """There is nobody to differ from."""
        return True
