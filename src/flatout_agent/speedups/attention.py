"""One replacement of torch's attention function, which several boosts share.

Two replacements of one function would hide each other, depending on which boost came first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.stand_in import StandIns, is_plain

if TYPE_CHECKING:
    import torch

Way = Callable[..., Any]
"""Called like the function itself; returns None for a call that it leaves alone."""


class Attention:
    """Replaces `scaled_dot_product_attention` while some way of computing it is held."""

    def __init__(self) -> None:
        import torch

        functional = torch.nn.functional
        self.original = functional.scaled_dot_product_attention
        self._ways: list[Way] = []
        makers = {"scaled_dot_product_attention": self._asking}
        self._stand_ins = StandIns({functional: makers})

    @property
    def holders(self) -> int:
        """How many ways are held now."""
        return self._stand_ins.holders

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            for way in self._ways:
                result = way(*args, **kwargs)
                if result is not None:
                    return result
            return original(*args, **kwargs)

        return scaled_dot_product_attention

    def add(self, way: Way) -> None:
        """Ask this way from now on, before those that are there."""
        self._ways.insert(0, way)
        self._stand_ins.hold()

    def remove(self, way: Way) -> None:
        """Do not ask this way any more."""
        self._ways.remove(way)
        self._stand_ins.let_go()


def in_float32(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """The attention that autocast would compute in bfloat16 on the CPU, from the same inputs in
    float32.

    A way of `Attention`. Takes calls that have a gradient and no dropout: torch computes them by
    tiles, and their backward pass in bfloat16 takes up to three times as long as in float32 on a
    CPU without AMX.
    """
    import torch

    if (
        dropout_p != 0.0
        or not torch.is_autocast_enabled("cpu")
        or torch.get_autocast_dtype("cpu") is not torch.bfloat16
        or not torch.is_grad_enabled()
        or not is_plain(query, key, value)
        or not any(tensor.requires_grad for tensor in (query, key, value))
        or any(tensor.device.type != "cpu" for tensor in (query, key, value))
        or any(tensor.dtype.itemsize > 4 for tensor in (query, key, value))
    ):
        return None
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.float()
    # What autocast would round is rounded here, so the inputs are the same.
    query, key, value = (tensor.to(torch.bfloat16).float() for tensor in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        attended = attention().original(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
    return attended.to(torch.bfloat16)


@functools.cache
def attention() -> Attention:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Attention()
