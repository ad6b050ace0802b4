"""Values that the operators of the first followed step take: zeros, indices, ignored targets.

A `Flow` passes each operator on; what is noted here becomes rows in `flow_value_rows`. Looked at
are factors of matrix products that neither are weights nor come from any, indices of embeddings,
and targets of losses: a few small reductions, in this one step alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.watch.profile.flow_rows import FlowRows
from flatout_agent.watch.profile.storages import storage_key
from flatout_agent.watch.tensors import readable

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowNode, FlowStorage

Taken = Sequence[tuple[torch.Tensor, "FlowStorage", bool]]
"""The tensors that an operator takes, in order, with their storages."""

FACTORS = {
    "aten.mm": (0, 1),
    "aten.addmm": (1, 2),
    "aten.bmm": (0, 1),
    "aten.baddbmm": (1, 2),
    "aten.mv": (0,),
    "aten.addmv": (1,),
}
"""Which of the tensors that a product takes are matrices that it multiplies."""
LOOKUPS = {"aten.embedding": 4, "aten._embedding_bag": 5}
"""The position of the argument `sparse`; a weight and indices come first."""
LOSSES = ("aten.nll_loss_forward", "aten.nll_loss2d_forward")
"""They take log-probabilities, a target, weights, a reduction and the ignored class."""
RANDOM_ZEROS = ("dropout", "bernoulli")
"""Operators of such names make zeros that another step has elsewhere."""
NARROWEST = 64
"""Rows and columns below which a matrix is not looked at."""
FULLEST = 0.05
"""Share of numbers that are not zero above which a matrix is not noted."""
MOST_NUMBERS = 1 << 25
"""Of a larger matrix every n-th row is looked at."""
MOST_LOOKS = 64
"""Matrices that are looked at."""


@dataclass(slots=True)
class FlowZeros:
    """A matrix of zeros but for a few numbers, and the products that take it."""

    storage: tuple[int, int]
    """With its version."""
    shape: tuple[int, ...]
    density: float
    kind: str
    """As in wire.ZerosSeen."""
    table: bool
    """The other factor is a weight."""
    maker: int
    """The operator that made it; -1: it is from before the step."""
    products: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FlowLookup:
    """One call of an embedding."""

    node: int
    weight: int
    """Its storage."""
    rows: int
    width: int
    indices: int
    touched: int
    """Distinct rows."""


@dataclass(slots=True)
class FlowLoss:
    """One call of a loss over classes."""

    node: int
    classes: int
    targets: int
    ignored: int


class FlowValues:
    """What a `Flow` notes of values."""

    def __init__(self, models: Sequence[torch.nn.Module], owned: dict[int, str]) -> None:
        """owned: storages of the models, parameter or buffer."""
        self.names = {
            key: name
            for model in models
            for name, parameter in model.named_parameters()
            if (key := storage_key(parameter)) is not None
        }
        """Of the weights, as in encoder.words.weight."""
        self.zeros: list[FlowZeros] = []
        self.lookups: list[FlowLookup] = []
        self.losses: list[FlowLoss] = []
        self.rows = FlowRows()
        self._owned = owned
        self._looked: dict[tuple[object, ...], FlowZeros | None] = {}
        self._learned: set[int] = set()
        """Operators whose result comes from weights, or has random zeros."""

    def operator(
        self,
        index: int,
        node: FlowNode,
        args: Any,
        taken: Taken,
        results: Sequence[torch.Tensor],
    ) -> None:
        """The operator of this number has run in a forward pass, or beside it."""
        self.rows.operator(index, node, args, taken, results)
        if node.step or node.backward:
            return
        if node.name in FACTORS:
            self._product(index, node, taken)
        elif node.name in LOOKUPS:
            self._lookup(index, node, args, taken)
        elif node.name in LOSSES and readable(args[1]):
            ignored = int((args[1] == args[4]).sum())
            classes = args[0].shape[1 if args[0].dim() > 1 else 0]
            self.losses.append(FlowLoss(index, int(classes), args[1].numel(), ignored))
        if (
            any(name in node.name for name in RANDOM_ZEROS)
            or not self._learned.isdisjoint(node.deps)  # what it changes has its number by now
            or any(self._is_learned(tensor, state) for tensor, state, _ in taken)
        ):
            self._learned.add(index)

    def _is_learned(self, tensor: torch.Tensor, state: FlowStorage) -> bool:
        """Whether training may change it."""
        return (
            tensor.requires_grad
            or isinstance(tensor, torch.nn.Parameter)
            or self._owned.get(state.ref.cdata) == "parameter"
            or state.node in self._learned
        )

    def _product(self, index: int, node: FlowNode, taken: Taken) -> None:
        positions = FACTORS[node.name]
        if len(taken) <= max(positions):
            return  # the same tensor may stand there twice, or be none of torch's own
        for position in positions:
            tensor, state, _ = taken[position]
            if self._is_learned(tensor, state) or not _is_matrix(tensor):
                continue
            storage = (state.ref.cdata, state.version)
            key = (*storage, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            if key not in self._looked and len(self._looked) < MOST_LOOKS:
                right = position == positions[-1] and len(positions) > 1
                other = taken[positions[0] if right else position + 1]
                table = self._is_learned(other[0], other[1]) and other[1].node < 0
                zeros = _zeros(tensor, right, storage, table, state.node)
                self._looked[key] = zeros
                if zeros is not None:
                    self.zeros.append(zeros)
            zeros = self._looked.get(key)
            if zeros is not None:
                zeros.products.append(index)

    def _lookup(self, index: int, node: FlowNode, args: Any, taken: Taken) -> None:
        place = LOOKUPS[node.name]
        weight, indices = args[0], args[1]
        sparse = len(args) > place and args[place]
        if sparse or not weight.requires_grad or weight.dim() != 2 or not readable(indices):
            return
        rows, width = weight.shape
        touched = int(indices.unique().numel()) if indices.numel() < rows else rows
        self.lookups.append(
            FlowLookup(index, taken[0][1].ref.cdata, rows, width, indices.numel(), touched)
        )


def _is_matrix(tensor: torch.Tensor) -> bool:
    """Whether its values can be looked at, and are enough to matter."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and tensor.dim() >= 2
        and min(tensor.shape[-2:]) >= NARROWEST
        and readable(tensor)
    )


def _zeros(
    tensor: torch.Tensor, right: bool, storage: tuple[int, int], table: bool, maker: int
) -> FlowZeros | None:
    """right: it is the right factor. None: it is no such matrix, or holds hardly anything."""
    shape = tuple(tensor.shape)
    sample = tensor[..., :: -(-tensor.numel() // MOST_NUMBERS), :]
    present = sample != 0
    count = int(present.sum())
    if count > FULLEST * sample.numel() or count < min(sample.shape[-2:]) / 2:
        return None
    along = 0 if right else 1
    single = [int(present.sum(dim).max()) <= 1 for dim in (-2, -1)]
    kind = "sparse"
    if any(single):
        ones = int((sample == 1).sum()) == count
        kind = "scaled" if not ones else "select" if single[along] else "add"
    return FlowZeros(storage, shape, count / sample.numel(), kind, table, maker)
