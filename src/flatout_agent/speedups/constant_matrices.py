"""Constant matrices that are mostly zeros and multiplied again and again, in compressed form.

`Constants` finds them: it searches a matrix for zeros when it meets it unchanged for the second
time. A matrix that has changed once is left alone for good.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MOST_DENSE = 0.1
"""Largest share of elements that are not zero: with twice as many, a sparse product gains
nothing."""


@dataclasses.dataclass(frozen=True)
class Sparse:
    """A constant matrix compressed by rows, and its transpose."""

    matrix: torch.Tensor
    transposed: torch.Tensor

    def turned(self) -> Sparse:
        """The transpose."""
        return Sparse(self.transposed, self.matrix)


class Constant:
    """A matrix of the program as first seen, and its compressed form once that is made."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.version, self.pointer = matrix._version, self._pointer(matrix)
        self.sparse: Sparse | None = None
        self.settled = False
        """Whether it was decided if it is compressed."""
        self.seen_at = -1
        """The step at which all elements were last seen to be the same."""
        self._places: Any = None
        self._words: Any = None

    def same(self, matrix: torch.Tensor) -> bool:
        """Whether nothing shows that it was written to."""
        return matrix._version == self.version and self._pointer(matrix) == self.pointer

    @staticmethod
    def _pointer(matrix: torch.Tensor) -> int:
        return matrix.data_ptr()

    def same_elements(self, matrix: torch.Tensor) -> bool:
        """Whether it still has the compressed elements, and zeros everywhere else."""
        import torch

        words = _words(matrix)
        return int(torch.count_nonzero(words)) == len(self._words) and torch.equal(
            torch.take(words, self._places), self._words
        )

    def compress(self, matrix: torch.Tensor) -> None:
        """Compress it if it is mostly zeros."""
        self.settled = True
        self.sparse = compressed(matrix)
        if self.sparse is not None:
            words = _words(matrix)
            self._places = words.nonzero().squeeze(1)
            self._words = words[self._places]


def _words(matrix: torch.Tensor) -> Any:
    """Its memory as 8-byte integers, whose non-zeros are counted four times as fast as those of
    floats.
    """
    import torch

    flat = matrix.view(-1)
    whole = flat.numel() * flat.element_size() % 8 == 0 and flat.data_ptr() % 8 == 0
    return flat.view(torch.int64 if whole else torch.int32)


def compressed(matrix: torch.Tensor) -> Sparse | None:
    """The matrix in compressed form, or None if too few of its elements are zero."""
    import torch

    if int(torch.count_nonzero(matrix)) > MOST_DENSE * matrix.numel():
        return None
    return _by_rows(matrix, matrix.t().contiguous())


def _by_rows(matrix: torch.Tensor, transposed: torch.Tensor) -> Sparse:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return Sparse(matrix.to_sparse_csr(), transposed.to_sparse_csr())


class SparseConstant(Constant):
    """The same for a sparse matrix (COO), whose parts are compared with copies."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__(matrix)
        self._parts: tuple[Any, ...] = ()

    @staticmethod
    def _pointer(matrix: torch.Tensor) -> int:
        return matrix._values().data_ptr()

    def same_elements(self, matrix: torch.Tensor) -> bool:
        import torch

        return all(map(torch.equal, (matrix._indices(), matrix._values()), self._parts))

    def compress(self, matrix: torch.Tensor) -> None:
        self.settled = True
        self._parts = matrix._indices().clone(), matrix._values().clone()
        self.sparse = _by_rows(matrix.coalesce().clone(), matrix.t().coalesce())


class Constants:
    """The matrices seen so far, as long as the program holds them."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[Any, Constant | None]] = {}
        """By address: a weak reference and the matrix's record, or None if the matrix changes."""

    def compressed(self, matrix: torch.Tensor, step: int) -> Sparse | None:
        """Its compressed form, or None if it is to be multiplied as it is."""
        reference, constant = self._met.get(id(matrix), (None, None))
        if reference is None or reference() is not matrix:
            self._meet(matrix)
            return None
        if constant is None or (constant.settled and constant.sparse is None):
            return None
        if not self._unchanged(constant, matrix, step):
            self._met[id(matrix)] = reference, None
            return None
        return constant.sparse

    def _meet(self, matrix: torch.Tensor) -> None:
        met, address = self._met, id(matrix)

        def gone(reference: Any) -> None:
            if met.get(address, (None,))[0] is reference:
                del met[address]

        kind = SparseConstant if matrix.is_sparse else Constant
        met[address] = weakref.ref(matrix, gone), kind(matrix)

    def _unchanged(self, constant: Constant, matrix: torch.Tensor, step: int) -> bool:
        """Whether it is unchanged; once a step all elements are compared.

        Without gradients they are compared each time: an evaluation may take no steps at all.
        """
        import torch

        if not constant.same(matrix):
            return False
        if not constant.settled:
            constant.compress(matrix)
            constant.seen_at = step
        looked_at = step == constant.seen_at and torch.is_grad_enabled()
        if not looked_at and constant.sparse is not None and not constant.same_elements(matrix):
            return False
        constant.seen_at = step
        return True


def product(sparse: Sparse, dense: torch.Tensor) -> Any:
    """The sparse matrix times a dense one, with gradients of any order for the dense one."""
    return _node().apply(sparse, dense)


@functools.cache
def _node() -> Any:
    import torch

    class SparseProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, sparse: Sparse, dense: torch.Tensor) -> Any:
            ctx.sparse = sparse
            with torch.autocast("cpu", enabled=False):
                return torch.ops.aten.mm(sparse.matrix, dense)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None, product(ctx.sparse.turned(), gradients[0])

    return SparseProduct
