"""LSTM and GRU layers over packed sequences, computed over the padded ones.

torch goes through a packed sequence step by step, and the gradient of each step's rows is a tensor
as large as all steps. Padded sequences go through torch's ordinary layers: for an LSTM that is
oneDNN's kernel. Padding must then change nothing. An input is added that is 1 in padding, with
weights that close the gates there: the state stays as it is, exactly, and no gradient passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

CLOSED = 1e4
"""Added to a gate in padding: its sigmoid is exactly 0 or 1, whatever the rest of its sum."""
GATES = {"lstm": (-CLOSED, CLOSED, 0.0, 0.0), "gru": (0.0, CLOSED, 0.0)}
"""By cell and gate, in torch's order. LSTM: nothing comes in, nothing is forgotten. GRU: the old
state is kept."""


class PackedCall(NamedTuple):
    """The arguments of torch's functions for packed sequences, in their order."""

    data: torch.Tensor
    batch_sizes: torch.Tensor
    states: Any
    """h of a GRU; h and c of an LSTM. Each of layers and directions x rows x units."""
    weights: list[torch.Tensor]
    biased: bool
    layers: int
    dropout: float
    training: bool
    bidirectional: bool

    @property
    def all_states(self) -> tuple[torch.Tensor, ...]:
        """The states of either cell."""
        return tuple(self.states) if isinstance(self.states, (tuple, list)) else (self.states,)


@dataclass(frozen=True)
class PaddedLayout:
    """Where the rows of a packed sequence lie in the padded one."""

    steps: int
    rows: int
    places: torch.Tensor
    """Of each packed row, in the padded sequence of `steps` x `rows`."""
    padding: torch.Tensor
    """1 where there is none; `steps` x `rows` x 1."""
    ends: torch.Tensor
    """The place of each row's last step."""


def layout(batch_sizes: torch.Tensor, like: torch.Tensor) -> PaddedLayout:
    """The layout of a packed sequence with these rows in each step."""
    import torch

    steps, rows = len(batch_sizes), int(batch_sizes[0])
    filled = torch.arange(rows) < batch_sizes[:, None]
    places = filled.flatten().nonzero().squeeze(1)
    padding = filled.logical_not().to(like.dtype).unsqueeze(2)
    ends = (filled.sum(0) - 1) * rows + torch.arange(rows)
    return PaddedLayout(steps, rows, places, padding, ends)


def run(cell: str, original: Callable[..., Any], call: PackedCall) -> tuple[torch.Tensor, ...]:
    """What `original` returns for the packed sequence: the packed output and the last states.

    original: torch's function, which takes padded sequences as well.
    """
    import torch

    data, weights, states = call.data, call.weights, call.all_states
    where = layout(call.batch_sizes, data)
    directions = 2 if call.bidirectional else 1
    each = 4 if call.biased else 2
    units = states[0].shape[2]
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(call.layers):
        of_layer = slice(layer * directions, (layer + 1) * directions)
        own = weights[of_layer.start * each : of_layer.stop * each]
        for direction in range(0, len(own), each):
            own[direction] = torch.cat([own[direction], _closing(cell, own[direction])], 1)
        padded = data.new_zeros(where.steps * where.rows, data.shape[1])
        padded = padded.index_copy(0, where.places, data)
        padded = padded.view(where.steps, where.rows, -1)
        inputs = torch.cat([padded, where.padding], 2)
        first = [state[of_layer] for state in states]
        output, *ended = original(
            inputs, first if cell == "lstm" else first[0], own, call.biased, 1, 0.0, True,
            call.bidirectional, False,
        )  # fmt: skip
        flat = output.flatten(0, 1)
        # Forward, the output of an LSTM goes on to change in padding, and a GRU's is rounded.
        at_ends = flat.index_select(0, where.ends)[:, :units]
        ended[0] = torch.cat([at_ends.unsqueeze(0), ended[0][1:]])
        for kept, state in zip(last, ended, strict=True):
            kept.append(state.to(data.dtype))  # autocast rounds them here, but not as written
        data = flat.index_select(0, where.places).to(data.dtype)
        if call.training and call.dropout and layer < call.layers - 1:
            data = torch.dropout(data, call.dropout, True)
    return data, *(torch.cat(kept) for kept in last)


def _closing(cell: str, weight: torch.Tensor) -> torch.Tensor:
    """The column of weights that closes the gates in padding."""
    units = len(weight) // len(GATES[cell])
    return weight.new_tensor(GATES[cell]).repeat_interleave(units).unsqueeze(1)
