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


class DisturbedGradients(reducer.TrainedParameters):
    """Adds random numbers to what backward passes give, as large as a share of its typical value.

    Sums are off by a share of what is added up, not of the result: a value close to zero may change
    its sign, which an optimizer like Adam makes a whole step of.
    """

    def __init__(self, orders: wire.RankOrders) -> None:
        super().__init__()
        self._share, self._seed = orders.rounding, orders.seed
        self._dice: dict[torch.device, torch.Generator] = {}

    def after_backward(self) -> None:
        """Disturb the gradients that have changed."""
        for parameter in self.parameters():
            if parameter is not None and reducer.is_changed(parameter):
                gradient: Any = parameter.grad
                if gradient.layout is torch.strided:
                    with torch.no_grad():
                        gradient.add_(self._noise(gradient))
                setattr(gradient, reducer.MARK, gradient._version)

    def averaged(self, gradients: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """What `torch.autograd.grad` has given, disturbed for parameters."""
        return tuple(
            gradient
            if gradient is None or not self.knows(tensor)
            else gradient + self._noise(gradient)
            for gradient, tensor in zip(gradients, tensors, strict=True)
        )

    @torch.no_grad()
    def _noise(self, gradient: torch.Tensor) -> torch.Tensor:
        """Drawn from numbers of its own: the program's stay as they are."""
        device = gradient.device
        if device not in self._dice:
            self._dice[device] = torch.Generator(device).manual_seed(self._seed)
        wide = torch.promote_types(gradient.dtype, torch.float32)
        typical = gradient.to(wide).abs().square().mean().sqrt()
        drawn = torch.randn(gradient.shape, generator=self._dice[device], device=device, dtype=wide)
        return (self._share * typical * drawn).to(gradient.dtype)


def disturb(orders: wire.RankOrders, guarded: Callable[..., Any]) -> None:
    """From now on, in a throw-away process."""
    reducer.watched(DisturbedGradients(orders), guarded)
