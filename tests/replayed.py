"""A stand-in for torch.cuda.make_graphed_callables, with its places and what is written to them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch


class Replayed(torch.autograd.Function):
    """One node around the pass, like the real recording's, with gradients in the same places.

    The recorded passes share one memory: the forward pass leaves what it likes in those places.
    """

    @staticmethod
    def forward(ctx: Any, twin: Any, places: Any, count: int, *inputs: Any) -> Any:
        for place in places:
            if place is not None:
                place.fill_(math.nan)
        ctx.places, static = places, [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        ctx.wanted = [*static[:count], *inputs[count:]]
        with torch.enable_grad():
            ctx.outputs = twin(*static[:count])
        return tuple(item.detach() for item in ctx.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        wanted = [item for item in ctx.wanted if item.requires_grad]
        found = torch.autograd.grad(ctx.outputs, wanted, gradients, allow_unused=True)
        for place, gradient in zip(filter(torch.is_tensor, ctx.places), found, strict=True):
            place.copy_(gradient)
        return None, None, None, *(p if p is None else p.detach() for p in ctx.places)


class Capture:
    """Records by making a copy of the module that shares its weights; keeps count of it."""

    def __init__(self, factor: float = 1.0) -> None:
        """factor: a wrong recording gives so many times what it should."""
        self.factor = factor
        self.recorded: list[Any] = []

    def __call__(self, whole: Any, samples: tuple[Any, ...]) -> Callable[..., Any]:
        weights = list(whole.parameters())
        twin, factor = copy.deepcopy(whole, {id(w): w for w in weights}), self.factor
        for _ in range(4):  # three times to warm up, once to record
            whole(*samples)
        inputs = [*samples, *weights]
        places = [torch.zeros_like(x) if x.requires_grad else None for x in inputs]
        self.recorded.append(samples)

        def made(*tensors: Any) -> tuple[Any, ...]:
            return tuple(item * factor for item in twin(*tensors))

        def graphed(*tensors: Any) -> Any:
            assert whole.training  # the real one holds the module, and asks it this
            return Replayed.apply(made, places, len(tensors), *tensors, *weights)

        return graphed
