"""Constants, that is, values that depend on no tensor changed by training, and their uses."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from flatout_agent.watch.profile.flow.records import (
    FlowConstant,
    FlowNode,
    FlowStorage,
    FlowUses,
    tensors,
)
from flatout_agent.watch.profile.flow.schemas import FROM_NOTHING, OperatorSchema
from flatout_agent.watch.profile.storages import storage_of

LEAST_BYTES = 1024
"""Smaller constants are compared only if making them takes LEAST_S, like statistics of a table."""
LEAST_S = 50e-6
MOST_BYTES = 256 << 20
"""Total bytes compared by value; constants after that are compared by how they were made."""


class FlowConstants:
    """The constants that meet a value of the loop, and how each was made."""

    def __init__(self, nodes: Sequence[FlowNode]) -> None:
        """nodes: the operators recorded so far."""
        self.constants: list[FlowConstant] = []
        self._nodes = nodes
        self._entered: dict[int, FlowConstant] = {}
        self._hashed = 0

    def operator(
        self,
        node: FlowNode,
        schema: OperatorSchema,
        uses: FlowUses,
        given: tuple[Any, dict[str, Any]],
        results: Sequence[torch.Tensor],
    ) -> int:
        """The signature of its result if that is a constant; else 0."""
        node.constant = self._makes(node, schema, uses)
        if not node.constant:
            return 0
        node.sources = node.deps if schema.name not in FROM_NOTHING else ()
        node.made_s = node.s + sum(self._nodes[source].made_s for source in node.sources)
        # A signature of how a constant was made, equal for equal code on equal values.
        if schema.name == "aten.lift_fresh":
            tensor = results[0]
            return hash((schema.name, tuple(tensor.shape), tensor.dtype, self.digest(tensor)))
        values = (*given[0], *given[1].values())
        words = ["" if tensors(value) else repr(value) for value in values]
        known = [self._value(tensor, state, results) for tensor, state, _ in uses.tensors]
        return hash((schema.name, *words, *(known if schema.name not in FROM_NOTHING else ())))

    def _makes(self, node: FlowNode, schema: OperatorSchema, uses: FlowUses) -> bool:
        """Whether its result is a constant; constants used together with other values
        are recorded.
        """
        if node.backward or node.loader or uses.unknown:
            return False
        if not schema.random and schema.tells_all:
            if schema.name in FROM_NOTHING:
                return True
            for _, state, _ in uses.tensors:
                if not state.constant:
                    break
            else:
                return True
        for tensor, state, written in uses.tensors:
            if state.constant and not written and state.node >= 0:
                self.enters(tensor, state, node.step)
        return False

    def enters(self, tensor: torch.Tensor, state: FlowStorage, step: int) -> None:
        """A constant is used together with another value; recorded once each time the constant is
        made.
        """
        storage = storage_of(tensor)
        size = int(storage.nbytes())
        small = size < LEAST_BYTES
        if small and self._nodes[state.node].made_s < LEAST_S:
            return
        if any(constant.node == state.node for constant in self.constants[-8:]):
            return
        digest = self.digest(tensor)
        layout = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        constant = self._entered[state.node] = FlowConstant(
            state.node,
            step,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            size,
            # Few bytes may be equal by chance.
            hash((*layout, digest, state.signature if small or digest is None else None)),
            digest is not None,
        )
        self.constants.append(constant)

    def overwritten(self, state: FlowStorage) -> None:
        """A storage gets a new value."""
        if state.node in self._entered:
            self._entered[state.node].changed = True

    def _value(
        self, tensor: torch.Tensor, state: FlowStorage, results: Sequence[torch.Tensor]
    ) -> tuple[object, ...]:
        """A signature of a constant's value; slices of one tensor differ.

        The program may write to host memory without an operator. If such memory is copied to a
        device, its bytes count, and unreadable memory equals nothing.
        """
        layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        known = (state.signature, state.version, *layout)
        copied = bool(results) and results[0].device.type != "cpu" == tensor.device.type
        if state.node >= 0 or not copied:
            return known
        digest = self.digest(tensor)
        return (*known, digest if digest is not None else -len(self._nodes))

    def digest(self, tensor: torch.Tensor) -> int | None:
        """A hash of the bytes of its storage, or None if there are too many or they are not on the
        host.
        """
        storage = storage_of(tensor)
        size = int(storage.nbytes())
        if tensor.device.type != "cpu" or self._hashed + size > MOST_BYTES:
            return None
        address = int(storage.data_ptr())
        if not address:
            return None
        self._hashed += size
        return zlib.crc32((ctypes.c_char * size).from_address(address))
