"""Random numbers for images in channels-last, as the program draws them in the usual format.

torch fills a tensor in the order of its memory. In channels-last the same seed would drop other
elements of a dropout between convolutions, and `randn_like` would give a diffusion model other
noise. Here they are drawn in the usual order, and only then moved; masks on a CPU only.
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
    """torch's dropout and `randn_like`, while there is a holder."""

    def __init__(self) -> None:
        import torch

        # `functional.dropout` calls these, and is itself replaced by another boost.
        multiplied = {"dropout": torch.Tensor.mul, "dropout_": torch.Tensor.mul_}
        makers = {name: functools.partial(self._by, by) for name, by in multiplied.items()}
        likes = dict.fromkeys(("randn_like", "rand_like"), self._like)
        self._stand_ins = StandIns({torch._VF: makers, torch: likes})
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
            and is_channels_last(tensor)
        )

    def _by(self, multiply: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(input: Any, p: float, train: bool) -> Any:
            drops = train and 0.0 < p < 1.0
            if not (drops and self._takes(input) and input.device.type == "cpu"):
                return original(input, p, train)
            return multiply(input, _mask(input, p))

        return dropout

    def _like(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def like(input: Any, **kwargs: Any) -> Any:
            asks = "memory_format" in kwargs or kwargs.get("requires_grad")
            if asks or not self._takes(input):
                return original(input, **kwargs)
            drawn = original(input, memory_format=torch.contiguous_format, **kwargs)
            return drawn.contiguous(memory_format=torch.channels_last)

        return like


@functools.cache
def usual_draws() -> UsualDraws:
    """The one of this process."""
    return UsualDraws()


def _mask(input: torch.Tensor, p: float) -> torch.Tensor:
    """The mask that torch draws on a CPU for this tensor in the usual format."""
    import torch

    mask = torch.empty_like(input, memory_format=torch.contiguous_format)
    mask.bernoulli_(1 - p).div_(1 - p)
    return mask.contiguous(memory_format=torch.channels_last)
