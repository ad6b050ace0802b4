"""What becomes of the rows that products of the first followed step make: how many are taken.

A `FlowValues` passes each operator on. A product's result, and what is made of it row by row, is
a table of rows that lie one after the other in memory; shape, strides and offset of what another
operator takes of it say which rows that are. What it means is read by `flow_unread_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flatout_agent.watch.profile.storages import storage_key

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowNode, FlowStorage

Taken = Sequence[tuple[torch.Tensor, "FlowStorage", bool]]
"""The tensors that an operator takes, in order, with their storages."""

PRODUCTS = {"aten.mm": 0, "aten.addmm": 1}
"""The position of the left factor among what they take; the right one follows."""
ROW_BY_ROW = frozenset(
    f"aten.{name}"
    for name in (
        "add", "sub", "mul", "div", "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "celu",
        "leaky_relu", "hardswish", "hardsigmoid", "hardtanh", "mish", "softplus", "exp", "log",
        "log1p", "abs", "neg", "square", "sqrt", "pow", "clamp", "clamp_min", "native_dropout",
        "_to_copy",
    )
)  # fmt: skip
"""Each number that they make comes from the one at its place, and from smaller tensors."""
WITHIN_ROWS = {"aten.native_layer_norm": None, "aten._softmax": 1, "aten._log_softmax": 1}
"""They work on each row; the position of the dimension among their arguments, if they have one."""
PICKING = frozenset(("aten.index", "aten.index_select"))
"""They copy some rows."""
MOST_READS = 256
"""Of one table."""


class TakenRows(NamedTuple):
    """Some rows of a table."""

    first: int
    """Below 0: not known which; told apart by the operator that picks them."""
    sizes: tuple[tuple[int, int], ...]
    """How many, and the step in rows, of each dimension."""

    @property
    def number(self) -> int:
        """Of the rows."""
        return math.prod(size for size, _ in self.sizes)


@dataclass(slots=True, eq=False)
class FlowTable:
    """Rows that a product has made, or an operator that works on them row by row."""

    storage: FlowStorage
    rows: int
    columns: int
    nodes: list[int]
    """The operator that made it, and those that changed it in place."""
    source: FlowTable | None = None
    """What it is made from, row by row."""
    left: int = -1
    """Of a product: the storage of its left factor ..."""
    right: int = -1
    """... and of its right one; -1: it is no product."""
    inner: int = 0
    """Of a product: the columns of its left factor."""
    reads: dict[TakenRows, int] = field(default_factory=dict)
    """Rows that are taken, with the first operator that takes them."""
    makes: list[FlowTable] = field(default_factory=list)
    """What is made from it row by row."""
    whole: bool = False
    """All of it is taken, or it is not known how much."""


class FlowRows:
    """Of one flow."""

    def __init__(self) -> None:
        self.tables: list[FlowTable] = []
        """In the order in which they were made."""
        self._by_storage: dict[int, FlowTable] = {}
        self._masks: set[int] = set()
        """Storages of random numbers, as dropout draws them."""

    def operator(
        self, index: int, node: FlowNode, args: Any, taken: Taken, results: Sequence[torch.Tensor]
    ) -> None:
        """The operator of this number has run; one that takes but a shape reads nothing."""
        if node.backward or node.name.endswith("_like") or node.name.startswith("aten.new_"):
            return
        if "bernoulli" in node.name:
            self._masks.update(state.ref.cdata for _, state, written in taken if written)
        position = self._source(node, args, taken, results) if node.step == 0 else None
        source = None
        for at, (tensor, state, written) in enumerate(taken):
            table = self._by_storage.get(state.ref.cdata)
            if table is not None and at == position:
                source = table
            elif table is not None and not table.whole:
                rows = _taken_rows(index, node, args, tensor, table, results)
                if written or rows is None or len(table.reads) >= MOST_READS:
                    table.whole = True
                else:
                    table.reads.setdefault(rows, index)
        if node.step == 0 and node.made:
            self._made(index, node, taken, source)

    def backward_from(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward pass begins there: all of their rows matter, by the gradients it is given."""
        for root in roots:
            table = self._by_storage.get(storage_key(root) or 0)
            if table is not None:
                table.whole = True

    def _source(
        self, node: FlowNode, args: Any, taken: Taken, results: Sequence[torch.Tensor]
    ) -> int | None:
        """Which of what it takes is a table that it works on row by row."""
        name = node.name.removesuffix("_")
        at = PRODUCTS.get(node.name)
        if at is not None:
            wide = [at] if len(taken) == at + 2 else []
        elif name in ROW_BY_ROW or name in WITHIN_ROWS:
            numbers = results[0].numel() if results else 0
            wide = [
                position
                for position, (tensor, state, _) in enumerate(taken)
                if tensor.numel() >= numbers and state.ref.cdata not in self._masks
            ]
        else:
            return None
        if len(wide) != 1 or (name != node.name and wide != [0]):
            return None
        tensor, state, _ = taken[wide[0]]
        table = self._by_storage.get(state.ref.cdata)
        if table is None or not _is_all(tensor, table):
            return None
        if at is not None:
            return wide[0] if tensor.stride() == (table.columns, 1) else None
        along = name in WITHIN_ROWS and not _along_rows(tensor, table, args, WITHIN_ROWS[name])
        return None if along else wide[0]

    def _made(self, index: int, node: FlowNode, taken: Taken, source: FlowTable | None) -> None:
        """Notes the table that an operator has made, or changed in place."""
        storage, at = node.made[0], PRODUCTS.get(node.name)
        if at is not None and len(taken) == at + 2 and taken[-1][0].numel():
            (left, left_state, _), (right, right_state, _) = taken[at : at + 2]
            table = FlowTable(storage, left.shape[0], right.shape[1], [index], source)
            table.left, table.right = left_state.ref.cdata, right_state.ref.cdata
            table.inner = left.shape[1]
        elif source is None:
            return
        elif storage is source.storage:
            source.nodes.append(index)
            return
        else:
            table = FlowTable(storage, source.rows, source.columns, [index], source)
        if source is not None:
            source.makes.append(table)
        self._by_storage[storage.ref.cdata] = table
        self.tables.append(table)


def _is_all(tensor: torch.Tensor, table: FlowTable) -> bool:
    """Whether it is the whole table, its dimensions in any order."""
    if tensor.numel() != table.rows * table.columns or tensor.storage_offset():
        return False
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True


def _along_rows(tensor: torch.Tensor, table: FlowTable, args: Any, position: int | None) -> bool:
    """Whether the dimension that the operator works along is that of the columns."""
    last = tensor.dim() - 1
    along = last if position is None else args[position]
    return tensor.shape[-1] == table.columns and tensor.is_contiguous() and along in (last, -1)


def _taken_rows(
    index: int,
    node: FlowNode,
    args: Any,
    tensor: torch.Tensor,
    table: FlowTable,
    results: Sequence[torch.Tensor],
) -> TakenRows | None:
    """The rows that an operator takes of a table; None: all of them, or it is not known which."""
    columns, each = table.columns, 1
    sizes: list[tuple[int, int]] = []
    first, column = divmod(int(tensor.storage_offset()), columns)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 1:
            continue
        if stride and stride % columns == 0:
            sizes.append((size, stride // columns))
        else:
            column += (size - 1) * stride
            each *= size
    if column >= columns:
        return None
    rows = TakenRows(first, tuple(sorted(sizes, key=lambda item: -item[1])))
    if node.name in PICKING and tensor is args[0] and each:
        picked = _dimensions(args, tensor)
        numbers = sum(result.numel() for result in results)
        if all(tensor.stride(at) and tensor.stride(at) % columns == 0 for at in picked):
            chosen = TakenRows(-1 - index, ((numbers // each, 1),))
            rows = chosen if chosen.number < rows.number else rows
    return rows if rows.number < table.rows else None


def _dimensions(args: Any, tensor: torch.Tensor) -> list[int]:
    """Those by whose indices an operator picks."""
    if isinstance(args[1], int):
        return [args[1] % tensor.dim()]
    dimensions: list[int] = []
    at = 0
    for indices in args[1]:
        mask = indices is not None and indices.dtype in (torch.bool, torch.uint8)
        wide = indices.dim() if mask else 1
        dimensions += range(at, at + wide) if indices is not None else ()
        at += wide
    return dimensions
