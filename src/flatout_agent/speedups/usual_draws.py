"""Random numbers for images in channels-last, as the program draws them in the usual format.

torch fills a tensor in the order of its memory. In channels-last the same seed would give each
element another number: `randn_like` of a diffusion model's image, the mask of a dropout between
convolutions. On a CPU the numbers are drawn in the usual order here, and only then moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.channels_last import is_channels_last
from flatout_agent.speedups.stand_in import StandIns, is_plain

if TYPE_CHECKING:
    import torch


class UsualDraws:
    """torch's functions that draw numbers for a given tensor, while there is a holder."""

    def __init__(self) -> None:
        import torch

        # `functional.dropout` calls the second owner, and is itself replaced by other boosts.
        self._stand_ins = StandIns(
            {
                torch: {"randn_like": self._like, "rand_like": self._like},
                torch._VF: {"dropout": self._dropout, "dropout_": self._dropout_},
            }
        )
        self.hold, self.let_go = self._stand_ins.hold, self._stand_ins.let_go
        self._calls = 0
        """Calls of models under channels-last that are under way."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A model's call, which has its images in channels-last.

        Activation checkpointing repeats parts of it in the backward pass.
        """
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _takes(self, tensor: Any) -> bool:
        import torch

        return bool(
            (self._calls or torch._C._current_graph_task_id() != -1)
            and is_plain(tensor)
            and tensor.device.type == "cpu"
            and is_channels_last(tensor)
        )

    def _like(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def like(input: Any, *args: Any, **options: Any) -> Any:
            if args or "memory_format" in options or not self._takes(input):
                return original(input, *args, **options)
            return _moved(original(_empty(input), **options))

        return like

    def _dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(input: Any, p: float, train: bool) -> Any:
            if not (train and 0.0 < p < 1.0 and self._takes(input)):
                return original(input, p, train)
            return input * _mask(input, p)

        return dropout

    def _dropout_(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dropout_(input: Any, p: float, train: bool) -> Any:
            if not (train and 0.0 < p < 1.0 and self._takes(input)):
                return original(input, p, train)
            return input.mul_(_mask(input, p))

        return dropout_


@functools.cache
def usual_draws() -> UsualDraws:
    """The one of this process."""
    return UsualDraws()


def _mask(input: torch.Tensor, p: float) -> torch.Tensor:
    """The mask that torch draws on a CPU for this tensor in the usual format."""
    return _moved(_empty(input).bernoulli_(1 - p).div_(1 - p))


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous(memory_format=torch.channels_last)
