"""Products of constant matrices that are mostly zeros, in place of torch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.constant_matrices import Constants, compressed, product
from flatout_agent.speedups.stand_in import StandIns, in_float32, is_plain

if TYPE_CHECKING:
    from flatout_agent.job import Job

SMALLEST = 1 << 16
"""The fewest elements of a dense matrix, or products of elements with a sparse one: with less, a
product takes less time than looking at its factors."""


class SparseProducts:
    """Handles the products that it can make faster, and passes on the others."""

    def __init__(self) -> None:
        import torch

        self.taken = 0
        self.constants = Constants()
        self._steps: Callable[[], int] = lambda: 0
        self._stand_ins = StandIns(
            {
                torch: dict.fromkeys(("mm", "matmul"), self._product),
                torch.Tensor: dict.fromkeys(("mm", "matmul", "__matmul__"), self._product),
                torch.nn.functional: {"linear": self._linear},
            }
        )
        self.of_sparse = StandIns(
            {torch: {"spmm": self._sparse_product}, torch.sparse: {"mm": self._sparse_product}}
        )
        """To be held under autocast, too."""
        self.why_not = self._tried()

    def hold(self, job: Job) -> None:
        """Add a holder."""
        self._steps = lambda: job.steps
        self._stand_ins.hold()
        self.of_sparse.hold()

    def let_go(self) -> None:
        """Remove a holder; without any, the compressed copies are dropped."""
        self._stand_ins.let_go()
        self.of_sparse.let_go()
        if not self._stand_ins.holders:
            self.constants = Constants()

    def _product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def matmul(input: Any, other: Any, **kwargs: Any) -> Any:
            if kwargs or not (self._takes(input, other) or self._takes_sparse(input, other)):
                return original(input, other, **kwargs)
            result = self._result(input, other)
            return original(input, other) if result is None else result

        return matmul

    def _sparse_product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Autocast does not know these functions: a factor in 16 bits fails, at the latest in the
        backward pass.
        """
        import torch

        def mm(*args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) != 2:
                return original(*args, **kwargs)
            matrix, dense = args
            if not torch.is_autocast_enabled(matrix.device.type):
                taken = self._takes_sparse(matrix, dense)
                result = self._result(matrix, dense) if taken else None
                return original(matrix, dense) if result is None else result
            return in_float32(mm, (matrix, dense), {})

        return mm

    def _linear(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            tensors = (input, weight) if bias is None else (input, weight, bias)
            if not self._takes(*tensors):
                return original(input, weight, bias)
            result = self._result(input, weight.t(), bias)
            return original(input, weight, bias) if result is None else result

        return linear

    def _takes(self, first: Any, *others: Any) -> bool:
        """Whether it is a matrix that could be a constant, times another, in an ordinary call."""
        import torch

        if type(first) is not torch.Tensor or first.requires_grad or first.dim() != 2:
            return False
        return bool(
            self._stand_ins.holders
            and is_plain(first, *others)
            and first.numel() >= SMALLEST
            and first.is_contiguous()
            and not first.is_inference()  # it has no version
            and others[0].dim() == 2
            and all(tensor.device.type == "cpu" for tensor in (first, *others))
            and not torch.are_deterministic_algorithms_enabled()
        )

    def _takes_sparse(self, first: Any, dense: Any) -> bool:
        """The same for a matrix that is sparse already."""
        import torch

        if type(first) is not torch.Tensor or first.layout is not torch.sparse_coo:
            return False
        return bool(
            self._stand_ins.holders
            and not first.requires_grad
            and (first.sparse_dim(), first.dense_dim()) == (2, 0)
            and is_plain(dense)
            and dense.dim() == 2
            and first._nnz() * dense.shape[1] >= SMALLEST
            and first.device.type == dense.device.type == "cpu"
            and not torch.are_deterministic_algorithms_enabled()
        )

    def _result(self, matrix: Any, dense: Any, bias: Any = None) -> Any:
        """The product, or None if the original is better."""
        import torch

        if matrix.dtype not in (torch.float32, torch.float64) or matrix.shape[1] != len(dense):
            return None
        rounded = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        if rounded is None and dense.dtype is not matrix.dtype:
            return None  # as written it raises
        if rounded is not None and torch.float64 in (matrix.dtype, dense.dtype):
            return None  # autocast leaves these as they are
        sparse = self.constants.compressed(matrix, self._steps())
        if sparse is None:
            return None
        self.taken += 1
        result = product(sparse, dense.to(matrix.dtype))
        if bias is not None:
            result = result + bias
        return result if rounded is None else result.to(rounded)

    def _tried(self) -> str | None:
        """Why torch cannot do it here, found by trying."""
        import torch

        try:
            matrix = torch.eye(32, device="cpu", dtype=torch.float32)
            sparse = compressed(matrix)
            same = sparse is not None and torch.equal(product(sparse, matrix * 2), matrix * 2)
        except Exception as error:
            return f"torch has no sparse product here: {str(error).splitlines()[0]}"
        return None if same else "torch's sparse product differs from the dense one"


@functools.cache
def sparse_products() -> SparseProducts:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return SparseProducts()
