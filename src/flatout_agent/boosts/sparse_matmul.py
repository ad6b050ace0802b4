"""Multiply constant matrices that are mostly zeros as sparse ones.

## What it does

Replaces `torch.mm`, `torch.matmul`, `@`, `torch.sparse.mm`, `torch.spmm` and
`torch.nn.functional.linear`, which `nn.Linear` calls, if the first factor is a matrix on the CPU
that the program multiplies again and again without changing it, and at most a tenth of it is not
zero: the adjacency matrix of a graph, a bag of words, one-hot features. The matrix may be dense or
sparse. When it is met for the second time it is copied in compressed form (CSR), once as it is and
once transposed. From then on torch's own sparse product computes both passes.

## Why it is faster

A dense product multiplies every zero. Measured with torch 2.13 on two cores of an AMD EPYC: 2,000 x
2,000 with 10,000 entries, times 2,000 x 64, took 2.3 ms as written and 0.06 ms this way; 2,000 x
800 with 36,000 entries, times 800 x 64, 1.3 and 0.13 ms. With one entry in ten it is still twice as
fast. With a sparse matrix (COO), torch computes the forward pass on one core and sorts the matrix
anew in each backward pass: 6,381 x 6,381 with 84,000 entries, times 6,381 x 64, took 3.0 and 6.0 ms
for the two passes, and 0.6 and 2.1 ms this way (two cores of an Intel Xeon).

## When it does nothing

- The model is on an accelerator, or compiled.
- Matrices with fewer than 65,536 elements, or with more than a tenth of them not zero; products of
  sparse ones that take fewer than 65,536 multiplications.
- The first factor has a gradient, has more than two dimensions, or is created again in each step,
  as a loader's batches are.
- Functions that were imported by name (`from torch import mm`).
- torch was built without a sparse product for this CPU.

## What it may change

Sums are taken in another order: the last bits differ. A zero times a weight that is infinite or NaN
is left out; a dense product gives NaN. Under autocast the product is computed in float32 and
rounded once, at the end. The compressed copies take at most 0.6 of a dense matrix's memory, and up
to three times that of a sparse one.

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

from typing import TYPE_CHECKING

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import (
    COMPILED,
    counting,
    multiplies,
    require_cpu,
    speedup,
    speedup_of_work,
    why_not_eager_on_cpu,
)
from flatout_agent.speedups.sparse_products import sparse_products

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

MOSTLY_KNOWN = 0.5
"""The share of a step whose operations are known, from which on it is known what it multiplies."""
BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL, outside_calls=True)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    reason = why_not_eager_on_cpu(facts)
    if reason is not None:
        return reason
    known = sum(facts.shares.values()) > MOSTLY_KNOWN
    if facts.models and known and not multiplies(facts):
        return "the program multiplies no matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: much for a graph, nothing for most programs."""
    measured = speedup(facts, sparse=4.0)
    return speedup_of_work(facts, 1.04) if measured is None else max(measured, 1.01)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace products from now on."""
    require_cpu(target, COMPILED)
    products = sparse_products()
    if products.why_not is not None:
        raise Declined(products.why_not)
    products.hold(job)
    some = "products with matrices that are mostly zeros"
    none = "no constant matrix that is mostly zeros was multiplied"
    return Applied(products.let_go, counting(lambda: products.taken, some, none))


def by_hand(facts: JobFacts, params: Params) -> str:
    """Compress the matrix once, before the loop."""
    return (
        "matrix = matrix.to_sparse_csr()  # once, before the training loop\n"
        "result = matrix @ dense  # for layer(matrix): matrix @ layer.weight.t() + layer.bias\n"
    )
