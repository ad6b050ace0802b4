"""Means within a region that are not over rows: cross-entropy leaves out ignored targets.

A model that computes its own loss returns the mean over its tokens. Within a region the tokens of
all ranks are counted, so the means of the ranks, weighted by their rows, give the mean of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.attach.replacing import Undo, in_reverse, replaced
from flatout_agent.ranks.rows import Split


def shared(split_under_way: Callable[[], Split | None]) -> Undo:
    """Count over all ranks while a region runs; returns the undo function."""
    functional = torch.nn.functional
    return in_reverse(
        replaced(functional, name, _counting(getattr(functional, name), split_under_way))
        for name in ("cross_entropy", "nll_loss")
    )


def _counting(
    original: Callable[..., Any], split_under_way: Callable[[], Split | None]
) -> Callable[..., Any]:
    def loss(
        input: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        **more: Any,
    ) -> torch.Tensor:
        split = split_under_way()
        classes = isinstance(target, torch.Tensor) and not target.is_floating_point()
        plain = size_average is None and reduce is None and reduction == "mean"
        if split is None or not classes or not plain:
            whole: torch.Tensor = original(
                input, target, weight, size_average, ignore_index, reduce, reduction, **more
            )
            return whole
        total: torch.Tensor = original(
            input, target, weight, None, ignore_index, None, "sum", **more
        )
        counted = target != ignore_index
        if weight is None:
            count = counted.sum().to(total.dtype)
        else:
            count = weight.detach()[target[counted]].sum().to(total.dtype)
        everywhere = split.group.sum_(count.reshape(1).clone()).reshape(())
        return total / everywhere * (split.rows / split.count)

    loss.__wrapped__ = original  # type: ignore[attr-defined]
    return loss
