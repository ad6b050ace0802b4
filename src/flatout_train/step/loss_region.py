"""Cross entropy over many logits, compiled as a region of its own beside compiled blocks.

Blocks that are compiled one by one leave the loss as written. For a language model the loss is much
of a step's memory traffic: 16-bit logits are cast to float32, and written and read several times;
in one compiled region they are read twice and their gradient is written once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from flatout_agent.speedups.stand_in import StandIn, is_plain

Loss = Callable[..., Tensor]
SMALLEST = 1 << 21
"""The fewest logits: with less, the loss is too small a part of a step to be worth compiling."""
_as_written: Loss = functional.cross_entropy


def cross_entropy(*args: Any, **kwargs: Any) -> Tensor:
    """Cross entropy as torch computes it, as a function for the compiler."""
    return _as_written(*args, **kwargs)


class LossRegion:
    """Within it, `torch.nn.functional.cross_entropy` is `compiled` where that pays."""

    def __init__(self, compiled: Loss) -> None:
        self.used = False
        """Whether a loss was computed by the compiled function."""

        def chosen(input: Any, target: Any, *args: Any, **kwargs: Any) -> Tensor:
            if not _pays(input, target):
                return _as_written(input, target, *args, **kwargs)
            self.used = True
            return compiled(input, target, *args, **kwargs)

        self._stand_in = StandIn(functional, {"cross_entropy": chosen})

    def __enter__(self) -> None:
        self._stand_in.hold()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stand_in.let_go()


def _pays(logits: Any, target: Any) -> bool:
    return (
        isinstance(logits, Tensor)
        and isinstance(target, Tensor)
        and is_plain(logits, target)
        and logits.numel() >= SMALLEST
        and logits.requires_grad
        and torch.is_grad_enabled()
    )
