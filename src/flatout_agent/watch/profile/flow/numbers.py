"""Value numbers: equal for the same operators on the same values, within a step and across steps.

A `Flow` passes each operator on. Random values, values that no dispatch mode sees, and memory that
the program may write to without an operator get a new number each time. `questions.again`
interprets the numbers afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import torch

from flatout_agent.watch.profile.flow.records import FlowNode
from flatout_agent.watch.profile.flow.schemas import (
    FROM_NOTHING,
    LIFTING,
    UNWRITTEN,
    OperatorSchema,
)
from flatout_agent.watch.profile.storages import storage_key, storage_of

RUNNING, TRAINING = 3, 5
"""Positions of batch normalisation's arguments: running mean, and whether it trains."""


class FlowNumbers:
    """What a `Flow` knows about equal values."""

    def __init__(self, owned: Collection[int]) -> None:
        """owned: storages of the models, to which only operators write."""
        self.again: dict[int, int] = {}
        """Operator -> the first one of its step that has made the same value."""
        self._owned = owned
        self._held: dict[int, int | None] = {}
        """Storage -> the number of its value, or None if the program may write there unseen."""
        self._first: dict[int, int] = {}
        self._step = 0
        self._fresh = itertools.count()

    def operator(
        self,
        index: int,
        node: FlowNode,
        schema: OperatorSchema,
        given: tuple[Any, dict[str, Any]],
        unknown: bool,
        lifted: int | None,
    ) -> None:
        """The operator of this number has run.

        unknown: it takes a tensor without storage. lifted: the signature of what it makes from
        Python's values, if it does, or None if bytes are no longer compared.
        """
        if node.step != self._step:
            self._step = node.step
            self._first.clear()
        if unknown or not _pure(node, schema, given[0], lifted):
            number = self._new()
        elif schema.name in LIFTING:
            number = hash((schema.name, lifted))
        else:
            word = _shape if schema.name in FROM_NOTHING else self._word
            args, kwargs = given
            number = hash((schema.name, *map(word, args), self._word(tuple(kwargs.items()))))
        for place, state in enumerate(node.made):
            self._held[state.ref.cdata] = hash((number, place))
        first = self._first.setdefault(number, index)
        if first != index:
            self.again[index] = first

    def exposed(self, tensor: torch.Tensor) -> None:
        """The program has obtained the memory of this tensor."""
        key = storage_key(tensor)
        if key is not None and tensor.device.type == "cpu":
            self._held[key] = None

    def _new(self) -> int:
        return hash(("new", next(self._fresh)))

    def _word(self, value: Any) -> object:
        """A key that is equal for arguments of equal value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._word, value))
        return type(value).__name__, repr(value)

    def _tensor(self, tensor: torch.Tensor) -> object:
        key = storage_key(tensor)
        if key is None:
            return self._new()
        if key not in self._held:
            self._held[key] = self._outside(tensor, key)
        number = self._held[key]
        return (
            number if number is not None else self._new(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _outside(self, tensor: torch.Tensor, key: int) -> int | None:
        """The number of a tensor made by no operator seen here; others may also write to the memory
        of an array.
        """
        foreign = tensor.device.type == "cpu" and not storage_of(tensor).resizable()
        return None if foreign and key not in self._owned else hash(("outside", key))


def _shape(value: Any) -> object:
    """A key that is equal for arguments of which an operator uses only the shape."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, str(value.device)
    return type(value).__name__, repr(value)


def _pure(node: FlowNode, schema: OperatorSchema, args: Sequence[Any], lifted: int | None) -> bool:
    """Whether the operator gives the same result for the same values."""
    if schema.random or not schema.tells_all or schema.name in UNWRITTEN:
        return False
    if schema.name in LIFTING:
        return node.constant and lifted is not None
    return not _keeps_statistics(node, args)


def _keeps_statistics(node: FlowNode, args: Sequence[Any]) -> bool:
    """Whether it is a batch normalisation that changes its running statistics."""
    if "batch_norm" not in node.name or node.backward:
        return False
    if len(args) <= TRAINING:
        return True
    return args[RUNNING] is not None and args[TRAINING] is not False
