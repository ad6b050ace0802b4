"""Ranks agree on small numbers while they train, without waiting, beside the exchange of tensors.

The library's Checkpoint uses this so that all ranks save and end at the same step: the first one to
end would take the others with it, before they have saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.ranks.group import RankGroup

_group: RankGroup | None = None
_count = 0


def offer(group: RankGroup) -> None:
    """Let this process, one of several ranks, agree with the others."""
    global _group
    _group = group


def rank() -> int:
    """The rank of this process, or 0 if it trains alone."""
    return 0 if _group is None else _group.rank


def maxima() -> Callable[[torch.Tensor], Callable[[], None]] | None:
    """A function that starts to make a tensor the maximum over the ranks, and returns a function
    that waits for it.

    None if this process trains alone. All ranks call it at the same places of the program.
    """
    global _count
    group = _group
    if group is None or group.size < 2:
        return None
    _count += 1
    beside: Any = group.beside(f"agreement-{_count}")

    def start(tensor: torch.Tensor) -> Callable[[], None]:
        work: Any = beside(tensor)

        def wait() -> None:
            group.finish(work)

        return wait

    return start
