"""Sorts, inverses, diagonal matrices and long lists of tensors in the first followed step.

A `Flow` passes each operator of the forward pass on; what is noted here becomes rows in
`flow_matrix_rows`. Of what a sort or an inverse has made it is noted who reads which part of it.
Only the matrices that are factorised or solved with are looked at by their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.watch.profile.flow_values import FACTORS
from flatout_agent.watch.tensors import readable

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowNode
    from flatout_agent.watch.profile.flow_values import Taken

SORTS = ("aten.sort", "aten.argsort")
INVERSES = {"aten.linalg_inv_ex": False, "aten.inverse": False, "aten.linalg_pinv": True}
"""Operators whose first result is an inverse: whether it is a pseudo-inverse."""
TRIANGLES = {
    "aten.linalg_cholesky_ex": 0,
    "aten.cholesky": 0,
    "aten.linalg_solve_triangular": 0,
    "aten.triangular_solve": 1,
    "aten.cholesky_solve": 1,
}
"""Operators on a matrix that costs nothing where it is diagonal, and its position among the
tensors that they take."""
JOINS = ("aten.stack", "aten.cat")
LONGEST = 64
"""Elements of a row below which a sort is not noted."""
NARROWEST = 4
"""Rows below which a matrix is not looked at."""
MANY = 256
"""Tensors that are joined, at least."""
MOST_NUMBERS = 1 << 22
"""Of a matrix that is looked at; a larger one counts as one that is not diagonal."""
MOST_LOOKS = 64


@dataclass(slots=True)
class FlowSort:
    """One call of a sort, and which of the sorted columns are read."""

    node: int
    length: int
    """Of a row."""
    stride: int
    """From one element of a row to the next."""
    descending: bool
    stable: bool
    begin: int
    end: int = 0
    whole: bool = False
    """Something reads it whole, or changes it."""


@dataclass(slots=True)
class FlowInverse:
    """One call that inverts a matrix, and what is multiplied by the result."""

    node: int
    shape: tuple[int, ...]
    pseudo: bool
    hermitian: bool
    products: list[int] = field(default_factory=list)
    columns: int = 0
    """Right-hand sides in all of them."""
    otherwise: bool = False
    """Something else reads the inverse."""


@dataclass(slots=True)
class FlowTriangle:
    """One factorisation or solve with a square matrix."""

    node: int
    shape: tuple[int, ...]
    diagonal: bool
    maker: int
    """The operator that made the matrix; -1: it is from before the step."""


@dataclass(slots=True)
class FlowJoin:
    """One concatenation of many tensors."""

    node: int
    tensors: int
    older: int
    """Of them, those from before the step."""
    shape: tuple[int, ...]
    """Of the first."""
    bytes: int


class FlowMatrices:
    """What a `Flow` notes of them."""

    def __init__(self, owned: Collection[int], batch: Mapping[int, str]) -> None:
        """Storages of the models' parameters and buffers, and of the batches of loaders."""
        self.sorts: list[FlowSort] = []
        self.inverses: list[FlowInverse] = []
        self.triangles: list[FlowTriangle] = []
        self.joins: list[FlowJoin] = []
        self._owned, self._batch = owned, batch
        self._sorted: dict[int, FlowSort] = {}
        self._inverted: dict[int, FlowInverse] = {}

    def operator(
        self,
        index: int,
        node: FlowNode,
        call: tuple[Any, dict[str, Any]],
        results: Sequence[torch.Tensor],
        taken: Taken,
    ) -> None:
        """The operator of this number has run; call: its arguments."""
        if node.backward or node.loader:
            return
        if self._sorted or self._inverted:
            for at, (tensor, state, written) in enumerate(taken):
                self._sort_is_read(tensor, state.ref.cdata, written)
                inverse = self._inverted.get(state.ref.cdata)
                if inverse is not None:
                    columns = 0 if written else _columns_multiplied(node, at, taken)
                    inverse.otherwise = inverse.otherwise or not columns
                    inverse.columns += columns
                    inverse.products.append(index)
        if node.step:
            return  # what the next step reads of the first one's is all that is asked for
        if node.name in SORTS:
            self._sort(index, node, call, results)
        elif node.name in INVERSES and results and node.made and not node.constant:
            hermitian = bool(call[1].get("hermitian") or (len(call[0]) > 3 and call[0][3]))
            inverse = FlowInverse(index, tuple(results[0].shape), INVERSES[node.name], hermitian)
            self.inverses.append(inverse)
            self._inverted[node.made[0].ref.cdata] = inverse
        elif node.name in TRIANGLES and len(taken) > TRIANGLES[node.name]:
            tensor, state, _ = taken[TRIANGLES[node.name]]
            others = [other for other, _, _ in taken if other is not tensor]
            self._triangle(index, tensor, others, state.node)
        elif node.name in JOINS and len(taken) >= MANY:
            self._join(index, node, taken)

    def _sort_is_read(self, tensor: torch.Tensor, storage: int, written: bool) -> None:
        """Something takes this tensor."""
        sort = self._sorted.get(storage)
        if sort is None:
            return
        columns = None if written else _columns(tensor, sort.stride, sort.length)
        if columns is None:
            sort.whole = True
        else:
            sort.begin, sort.end = min(sort.begin, columns[0]), max(sort.end, columns[1])

    def _sort(
        self,
        index: int,
        node: FlowNode,
        call: tuple[Any, dict[str, Any]],
        results: Sequence[torch.Tensor],
    ) -> None:
        args, words = call
        first = results[0] if results else None
        if first is None or not first.dim() or not all(out.is_contiguous() for out in results):
            return
        stable = bool(words.get("stable"))
        dim = words.get("dim", args[1] if len(args) > 1 else -1)
        descending = words.get("descending", args[2] if len(args) > 2 else False)
        length = int(first.shape[dim])
        if length >= LONGEST:
            stride = int(first.stride(dim))
            sort = FlowSort(index, length, stride, bool(descending), stable, begin=length)
            self.sorts.append(sort)
            self._sorted.update((state.ref.cdata, sort) for state in node.made)

    def _triangle(
        self, index: int, tensor: torch.Tensor, others: Sequence[torch.Tensor], maker: int
    ) -> None:
        """others: right-hand sides. A triangular one is the factor of another distribution, full
        as it is: its divergence from this one is not known of independent normals.
        """
        shape = tuple(tensor.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < NARROWEST:
            return
        look = len(self.triangles) < MOST_LOOKS and 0 < tensor.numel() <= MOST_NUMBERS
        diagonal = look and _looks_diagonal(tensor) and not any(map(_looks_triangular, others))
        self.triangles.append(FlowTriangle(index, shape, diagonal, maker))

    def _join(self, index: int, node: FlowNode, taken: Taken) -> None:
        """Tensors that are trained, or just came from a loader, are no list of the program's."""
        first, older = taken[0][0], 0
        if any(tensor.shape != first.shape for tensor, _, _ in taken):
            return  # one tensor cannot hold them as rows
        for tensor, state, _ in taken:
            known = state.ref.cdata in self._owned or state.ref.cdata in self._batch
            older += state.node < 0 and not (known or tensor.requires_grad)
        size = len(taken) * first.numel() * first.element_size()
        self.joins.append(FlowJoin(index, len(taken), older, tuple(first.shape), size))


def _columns(tensor: torch.Tensor, stride: int, length: int) -> tuple[int, int] | None:
    """Which elements of each sorted row a view of them holds, begin and end; None: not known.

    The sorted tensor is contiguous, its rows of `length` have this stride.
    """
    if not tensor.numel():
        return None
    block = stride * length
    offset = int(tensor.storage_offset())
    begin, inner, along = offset % block // stride, offset % stride, 0
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        reach = (size - 1) * step
        if size == 1 or step == 0 or step % block == 0:
            continue
        if step % stride == 0:
            along += reach // stride
        elif step < stride:
            inner += reach
        else:
            return None
    end = begin + along + 1
    return (begin, end) if end <= length and inner < stride else None


def _columns_multiplied(node: FlowNode, at: int, taken: Taken) -> int:
    """Columns (or rows) that a product multiplies by the matrix at this place; 0: not known."""
    places = FACTORS.get(node.name, ())
    if at not in places or len(taken) <= max(places):
        return 0
    if len(places) == 1:
        return 1
    left, right = places
    return int(taken[right][0].shape[-1] if at == left else taken[left][0].shape[-2])


def _looks_triangular(tensor: torch.Tensor) -> bool:
    """Whether it is a square matrix with zeros on one side alone of its diagonal."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] >= NARROWEST
    if not square or tensor.numel() > MOST_NUMBERS or not readable(tensor):
        return False
    tensor = tensor.detach()
    sides = [bool(side.any()) for side in (tensor.tril(-1), tensor.triu(1))]
    return sides in ([True, False], [False, True])


def _looks_diagonal(tensor: torch.Tensor) -> bool:
    """Whether all of a square matrix's other numbers are zero."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    if not tensor.is_floating_point() or not readable(tensor):
        return False
    tensor = tensor.detach()
    present = tensor.count_nonzero()
    return bool(present == tensor.diagonal(dim1=-2, dim2=-1).count_nonzero()) and bool(present)
