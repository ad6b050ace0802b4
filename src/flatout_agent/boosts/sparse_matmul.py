"""Multiply constant matrices that are mostly zeros as sparse ones.

## What it does

Replaces `torch.mm`, `torch.matmul`, `@` and `torch.nn.functional.linear`, which `nn.Linear` calls,
if the first factor is a matrix on the CPU that the program multiplies again and again without
changing it, and at most a tenth of it is not zero: the adjacency matrix of a graph, a bag of words,
one-hot features. When such a matrix is met for the second time it is copied in compressed form
(CSR), once as it is and once transposed. From then on torch's own sparse product computes both
passes.

## Why it is faster

A dense product multiplies every zero. Measured with torch 2.13 on two cores of an AMD EPYC: 2,000 x
2,000 with 10,000 entries, times 2,000 x 64, took 2.3 ms as written and 0.06 ms this way; 2,000 x
800 with 36,000 entries, times 800 x 64, 1.3 and 0.13 ms. With one entry in ten it is still twice as
fast.

## When it does nothing

- The model is on an accelerator, or compiled.
- Matrices with fewer than 65,536 elements, or with more than a tenth of them not zero.
- The first factor has a gradient, has more than two dimensions, or is created again in each step,
  as a loader's batches are.
- Functions that were imported by name (`from torch import mm`).
- torch was built without a sparse product for this CPU.

## What it may change

Sums are taken in another order: the last bits differ. A zero times a weight that is infinite or NaN
is left out; a dense product gives NaN. Under autocast the product is computed in float32 and
rounded once, at the end. The compressed copies take at most 0.6 of the matrix's memory.

## How it is undone

torch's own functions are put back. A matrix that changes is multiplied as written from then on: its
version is compared at each product. Writes that do not change the version (through NumPy or
`.data`) are found by comparing all elements once a step, and at each product without gradients.

## References

- https://docs.pytorch.org/docs/stable/sparse.html#sparse-csr-tensor
- Kipf, Welling, Semi-Supervised Classification with Graph Convolutional Networks,
  https://arxiv.org/abs/1609.02907
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import compiled_by_user
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import multiplies, require_cpu, speedup_of_work, why_not_eager_on_cpu
from flatout_agent.speedups.constant_matrices import Constants, compressed, product
from flatout_agent.speedups.stand_in import StandIns, is_plain

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL, outside_calls=True)

SMALLEST = 1 << 16
"""The fewest elements: with less, a product takes less time than looking at its factors."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    reason = why_not_eager_on_cpu(facts)
    if reason is not None:
        return reason
    if facts.models and not multiplies(facts):
        return "the program multiplies no matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: much for a graph, nothing for most programs."""
    return speedup_of_work(facts, 1.04)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace products from now on."""
    require_cpu(target)
    if compiled_by_user(target) or type(target).__name__ == "OptimizedModule":
        raise Declined("the model is compiled")
    products = _products()
    if products.why_not is not None:
        raise Declined(products.why_not)
    taken_before = products.taken
    products.hold(job)

    def engaged() -> tuple[bool, str]:
        count = products.taken - taken_before
        if count:
            return True, f"{count} products with matrices that are mostly zeros"
        return False, "no constant matrix that is mostly zeros was multiplied"

    return Applied(products.let_go, engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """Compress the matrix once, before the loop."""
    return (
        "matrix = matrix.to_sparse_csr()  # once, before the training loop\n"
        "result = matrix @ dense  # for layer(matrix): matrix @ layer.weight.t() + layer.bias\n"
    )


class Products:
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
        self.why_not = self._tried()

    def hold(self, job: Job) -> None:
        """Add a holder."""
        self._steps = lambda: job.steps
        self._stand_ins.hold()

    def let_go(self) -> None:
        """Remove a holder; without any, the compressed copies are dropped."""
        self._stand_ins.let_go()
        if not self._stand_ins.holders:
            self.constants = Constants()

    def _product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def matmul(input: Any, other: Any, **kwargs: Any) -> Any:
            if kwargs or not self._takes(input, other):
                return original(input, other, **kwargs)
            result = self._result(input, other)
            return original(input, other) if result is None else result

        return matmul

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
def _products() -> Products:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Products()
