"""Compute packed sequences in LSTM and GRU layers over their padded form, on the CPU.

## What it does

Replaces what `nn.LSTM` and `nn.GRU` call for a `PackedSequence`. The sequences are padded again and
go through torch's ordinary layers, with one more input that closes the gates in padding: the state
stays exactly as it was, and no gradient passes. Outputs and last states are packed as before.

## Why it is faster

torch goes through a packed sequence step by step, and the gradient of each step's rows is a tensor
of zeros as large as all steps together: the time grows with the square of the length. Over padded
sequences an LSTM is one call of oneDNN in each direction. Measured with torch 2.13 on two cores of
an AMD EPYC, 64 sequences of 67 to 200 steps, 128 units in both directions: forward and backward
pass of an LSTM took 975 ms before and 208 after, of a GRU 588 and 253 ms.

## When it does nothing

- The model is on an accelerator or compiled, or has no `nn.LSTM` or `nn.GRU`.
- Padded sequences would have more than twice as many steps as packed ones.
- A GRU over fewer than 64 steps: there it is not faster.
- LSTMs with projections (`proj_size`); those that read backward from a state that is not zero;
  `nn.RNN`; other types than float32.

## What it may change

Sums are taken in another order: the last bits differ. Dropout between the layers draws the same
masks as before.

## How it is undone

torch's own functions are put back.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html
- https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/RNN.cpp (`PackedLayer`)
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.boosts import (
    COMPILED,
    counting,
    require_cpu,
    speedup_of_work,
    why_not_eager_on_cpu,
)
from flatout_agent.speedups import packed_sequences
from flatout_agent.speedups.recurrent import RecurrentWays
from flatout_agent.speedups.stand_in import is_plain

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL)

MOST_PADDED = 2.0
"""Steps of the padded sequences for each packed one."""
SHORTEST = {"lstm": 2, "gru": 64}
"""The fewest steps, by cell."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    reason = why_not_eager_on_cpu(facts)
    if reason is not None:
        return reason
    if facts.models and not any(model.recurrent for model in facts.models):
        return "the model has no nn.LSTM or nn.GRU"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: most programs with such layers do not pack sequences."""
    return speedup_of_work(facts, 1.3)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace the functions from now on."""
    require_cpu(target, COMPILED)
    layers = _layers()
    some = "packed sequences computed over padded ones"
    none = "no packed sequence that is faster this way was seen"
    layers.hold()
    return Applied(layers.let_go, counting(lambda: layers.taken, some, none))


def by_hand(facts: JobFacts, params: Params) -> str:
    """A layer in one direction needs no packing if only the output at each row's end is used."""
    return (
        "# in one direction, not packed: padding after the end changes nothing\n"
        "output, _ = lstm(padded)  # steps x rows x units\n"
        "last = output[lengths - 1, torch.arange(len(lengths))]\n"
    )


class PackedLayers:
    """Handles the calls that it can make faster, and passes on the others."""

    def __init__(self) -> None:
        self.taken = 0
        ways = {cell: functools.partial(self._packed, cell) for cell in SHORTEST}
        held = RecurrentWays(ways, first=True)
        self.hold, self.let_go = held.hold, held.let_go

    def _packed(self, cell: str, *args: Any) -> Any:
        import torch

        # In calls for a padded sequence the weights come one place earlier.
        if len(args) != 9 or not isinstance(args[3], (list, tuple)):
            return None
        call = packed_sequences.PackedCall(*args)
        if not self._takes(cell, call):
            return None
        self.taken += 1
        return packed_sequences.run(cell, getattr(torch._VF, cell), call)

    def _takes(self, cell: str, call: packed_sequences.PackedCall) -> bool:
        """Whether it is a call for a packed sequence that is faster over the padded one."""
        import torch

        data, sizes, states = call.data, call.batch_sizes, call.all_states
        if not is_plain(data, sizes, *states, *call.weights):
            return False
        each = (4 if call.biased else 2) * (2 if call.bidirectional else 1)
        usual = (
            len(call.weights) == each * call.layers  # no projections
            and data.device.type == "cpu"
            and all(tensor.dtype is torch.float32 for tensor in (data, *states, *call.weights))
            and not torch.is_anomaly_enabled()
        )
        if not usual or len(sizes) < SHORTEST[cell] or data.dim() != 2:
            return False
        if len(sizes) * int(sizes[0]) > MOST_PADDED * len(data):
            return False
        # Read backward, an LSTM meets the padding first: only a state of zeros passes through it.
        if cell == "gru" or not call.bidirectional:
            return True
        return not any(s.requires_grad or bool(s.count_nonzero()) for s in states)


@functools.cache
def _layers() -> PackedLayers:
    """The instance of this process."""
    return PackedLayers()
