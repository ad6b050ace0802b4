"""The places where float64 enters a step, and what is computed in float64 because of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from flatout_agent.watch import places
from flatout_agent.watch.profile.flow.records import FlowEntry, FlowNode, FlowUses

DTYPES = (torch.float64, torch.complex128)
WIDE = 64
"""The number of places where float64 enters that are distinguished."""


class FlowDoubles:
    """The entries of float64, each with a bit that follows the values that are float64 because of
    it.
    """

    def __init__(self) -> None:
        self.entries: list[FlowEntry] = []

    def before(self, tensor: torch.Tensor, what: str, part: str | None) -> int:
        """The bit of a tensor made by no operator seen here, or 0 if it is not float64."""
        if tensor.dtype not in DTYPES or not tensor.dim():
            return 0
        frame = places.user_frame(sys._getframe(1)) if what != "batch" else None
        where = places.location(frame) if frame is not None else None
        return self._bit(FlowEntry(what, where, part or ""))

    def batch(self, bits: int, path: str) -> None:
        """Record that these bits stand for this part of the batch."""
        for entry in self._of(bits):
            entry.part = entry.part or path

    def widened(self, node: FlowNode, uses: FlowUses, results: Sequence[torch.Tensor]) -> int:
        """The bits of everything that made this float64, with the entries updated."""
        bits = 0
        wide_input = False
        for tensor, state, _ in uses.tensors:
            if tensor.dtype in DTYPES and tensor.dim():
                wide_input = True
                bits |= state.wide
        wide_output = False
        for tensor in results:
            wide_output = wide_output or (tensor.dtype in DTYPES and tensor.dim() > 0)
        if wide_output and not wide_input and not node.backward:
            bits = self._bit(FlowEntry(node.name, node.where))
        for entry in self._of(bits) if bits and node.step == 0 else ():
            entry.s += node.s
            entry.operators += 1
        return bits if wide_output else 0

    def _bit(self, entry: FlowEntry) -> int:
        """The entry's bit, or 0 if there are too many entries."""
        for number, known in enumerate(self.entries):
            if (known.what, known.where, known.part) == (entry.what, entry.where, entry.part):
                return 1 << number
        if len(self.entries) >= WIDE:
            return 0
        self.entries.append(entry)
        return 1 << (len(self.entries) - 1)

    def _of(self, bits: int) -> list[FlowEntry]:
        return [entry for number, entry in enumerate(self.entries) if bits >> number & 1]
