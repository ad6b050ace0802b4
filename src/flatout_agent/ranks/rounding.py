"""One process with gradient noise as large as that of ranks, to show the effect of the noise alone.

Ranks add the same numbers in another order. Some trainings amplify rounding within a few steps
(batch normalisation at a high learning rate, GANs). The deviation of the ranks' losses is then
judged by the deviation of this process's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.ranks import reducer


class DisturbedGradients(reducer.TrainedParameters):
    """Adds random numbers to the gradients of backward passes, as large as a share of their typical
    value.

    The error of a sum is a share of its terms, not of its result: a value close to zero may change
    its sign, which an optimizer like Adam turns into a whole step.
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
        """The results of `torch.autograd.grad`, disturbed for parameters."""
        return tuple(
            gradient
            if gradient is None or not self.knows(tensor)
            else gradient + self._noise(gradient)
            for gradient, tensor in zip(gradients, tensors, strict=True)
        )

    @torch.no_grad()
    def _noise(self, gradient: torch.Tensor) -> torch.Tensor:
        """Noise from a separate generator, so the program's numbers stay as they are."""
        device = gradient.device
        if device not in self._dice:
            self._dice[device] = torch.Generator(device).manual_seed(self._seed)
        wide = torch.promote_types(gradient.dtype, torch.float32)
        typical = gradient.to(wide).abs().square().mean().sqrt()
        drawn = torch.randn(gradient.shape, generator=self._dice[device], device=device, dtype=wide)
        return (self._share * typical * drawn).to(gradient.dtype)


def disturb(orders: wire.RankOrders, guarded: Callable[..., Any]) -> None:
    """Disturb gradients from now on, in a throw-away process."""
    reducer.watched(DisturbedGradients(orders), guarded)
