"""torch's recurrent layers, which several boosts replace, and small ones in float32 where bfloat16
autocast would slow them down on a CPU.

Each step of a GRU or a plain RNN is a product of its own, with casts before it and after it, and so
is that of a cell that the program calls itself. If it is small, these take longer than bfloat16
saves: it runs at 0.4 to 0.9 of the speed. Layers of LSTM are one kernel of oneDNN.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import nests
from flatout_agent.speedups.stand_in import Way, Ways, in_float32, rounded_in_training

if TYPE_CHECKING:
    import torch

GATED, PLAIN = 2_000_000, 6_000_000
"""A step of fewer products (rows x units x units) is faster in float32, of cells with gates and of
those without."""
SMALL = {
    "gru": GATED,
    "gru_cell": GATED,
    "lstm_cell": GATED,
    "rnn_tanh": PLAIN,
    "rnn_tanh_cell": PLAIN,
    "rnn_relu": PLAIN,
    "rnn_relu_cell": PLAIN,
}


@functools.cache
def recurrent() -> dict[str, Ways]:
    """By torch's name, in this process; kept, since torch's table refers to them by address."""
    import torch

    return {name: Ways(torch._VF, name) for name in ("lstm", *SMALL)}


class RecurrentWays:
    """Ways of computing several of these functions that are held together."""

    def __init__(self, ways: Mapping[str, Way], first: bool = False) -> None:
        """ways: by torch's name. first: to be asked before all others."""
        self._ways, self._first = ways, first

    def hold(self) -> None:
        """Add a holder."""
        for name, way in self._ways.items():
            recurrent()[name].add(way, self._first)

    def let_go(self) -> None:
        """Remove a holder."""
        for name, way in self._ways.items():
            recurrent()[name].remove(way)


def _small(name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        slow = _is_slow(args, SMALL[name])
    except Exception:  # torch says what is wrong with the call
        slow = False
    return in_float32(recurrent()[name].original, args, kwargs) if slow else None


def _is_slow(args: tuple[Any, ...], most: int) -> bool:
    """Whether autocast would compute this call in bfloat16, slowly."""
    state: torch.Tensor = args[1][0] if isinstance(args[1], (tuple, list)) else args[1]
    if not state.is_floating_point():  # the rows of each step of a packed sequence
        state = args[2]
    rows, units = state.shape[-2:]
    return rows * units * units < most and rounded_in_training(*nests.tensors(args))


@functools.cache
def small_recurrences() -> RecurrentWays:
    """Computes steps of few products in float32 while it is held; the instance of this process."""
    return RecurrentWays({name: functools.partial(_small, name) for name in SMALL})
