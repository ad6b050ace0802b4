"""One process whose gradients are off as much as those of ranks are: what that alone does.

Ranks add the same numbers in another order. In some trainings so little grows within a few steps
(batch normalisation at a high learning rate, two models against each other): what the ranks' losses
are off by is then judged by what those of this process are off by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.ranks import reducer
from flatout_agent.ranks.lone import LoneGroup


class DisturbingReducer(reducer.Reducer):
    """Scales each value of what backward passes give by a random number close to 1."""

    def __init__(self, orders: wire.RankOrders) -> None:
        super().__init__(LoneGroup(orders))
        self._share, self._seed = orders.rounding, orders.seed
        self._dice: dict[torch.device, torch.Generator] = {}

    def after_backward(self, place: Any) -> None:
        """Disturb the gradients that have changed."""
        for parameter in self.parameters():
            if parameter is not None and reducer.is_changed(parameter):
                gradient: Any = parameter.grad
                if gradient.layout is torch.strided:
                    with torch.no_grad():
                        gradient.mul_(self._factors(gradient))
                setattr(gradient, reducer.MARK, gradient._version)

    def averaged(self, gradients: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """What `torch.autograd.grad` has given, disturbed for parameters."""
        return tuple(
            gradient
            if gradient is None or not self.knows(tensor)
            else gradient * self._factors(gradient)
            for gradient, tensor in zip(gradients, tensors, strict=True)
        )

    def _factors(self, like: torch.Tensor) -> torch.Tensor:
        """Of numbers of their own: the program's stay as they are."""
        dice = self._dice.get(like.device)
        if dice is None:
            dice = self._dice[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        real = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
        drawn = torch.randn(like.shape, generator=dice, device=like.device, dtype=real)
        return (1.0 + self._share * drawn).to(real if like.is_complex() else like.dtype)


def disturb(orders: wire.RankOrders, guarded: Callable[..., Any]) -> None:
    """From now on, in a throw-away process."""
    reducer.watched(DisturbingReducer(orders), guarded)
