"""The backward pass of a model's head, without the rows whose gradient is zero.

A loss that ignores positions (words that are not masked, a prompt, padding) gives their logits a
gradient of zero. The products with it are zero as well, but as written they are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.loss_in_pieces import MOST_COUNTED

if TYPE_CHECKING:
    import torch

LOOKED_AT = 8
"""Columns in which a row is looked at first: a row without zeros shows that in nearly any of
them."""


@functools.cache
def node(linear: Callable[..., Any]) -> Any:
    """The autograd function: `apply(input, weight, bias)` returns `linear` of them."""
    import torch

    base: Any = torch.autograd.Function

    class LinearOfSomeRows(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, input: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(input, weight)
            return linear(input, weight, bias)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            input, weight = ctx.saved_tensors
            of_input, of_weight, of_bias = ctx.needs_input_grad
            rows, inputs = gradient.flatten(0, -2), input.flatten(0, -2)
            index = counted(rows)
            if index is not None:
                rows, inputs = rows.index_select(0, index), inputs.index_select(0, index)
            to_input = to_weight = to_bias = None
            if of_input:
                to_input = rows @ weight
                if index is not None:
                    whole = to_input.new_zeros(gradient.shape[:-1].numel(), weight.shape[1])
                    to_input = whole.index_copy(0, index, to_input)
                to_input = to_input.view(input.shape)
            if of_weight:
                to_weight = rows.t() @ inputs
            if of_bias:
                to_bias = rows.sum(0)
            return to_input, to_weight, to_bias

    return LinearOfSomeRows


def counted(gradient: torch.Tensor) -> torch.Tensor | None:
    """The rows that are not all zeros, or None if most rows are not."""
    import torch

    few = gradient[:, :: max(1, gradient.shape[1] // LOOKED_AT)]
    empty = few.eq(0).all(1).nonzero().squeeze(1)
    if len(empty) < (1.0 - MOST_COUNTED) * len(gradient):
        return None
    used = torch.ones(len(gradient), dtype=torch.bool, device=gradient.device)
    used[empty] = gradient.index_select(0, empty).ne(0).any(1)
    index = used.nonzero().squeeze(1)
    return index if len(index) <= MOST_COUNTED * len(gradient) else None
