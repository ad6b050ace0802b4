"""sparse-matmul: the products of the program, of constants that are mostly zeros, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import sparse_matmul as boost
from flatout_agent.job import Job
from flatout_agent.speedups import sparse_products as engine
from flatout_agent.speedups.sparse_products import sparse_products
from switched import switched, taken

ORIGINALS = (torch.mm, torch.matmul, functional.linear)
LARGEST_DIFFERENCE = 1e-5

PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "@": lambda matrix, dense: matrix @ dense,
    "Tensor.mm": lambda matrix, dense: matrix.mm(dense),
    "Tensor.matmul": lambda matrix, dense: matrix.matmul(dense),
    "linear": lambda matrix, dense: functional.linear(matrix, dense.t()),
    "linear with a bias": lambda matrix, dense: functional.linear(matrix, dense.t(), dense.sum(0)),
}


def looked_up(name: str) -> Callable[[Any, Any], Any]:
    """The product by the name that the program calls it by, at the time of the call."""
    if name in ("mm", "matmul"):
        return lambda matrix, dense: getattr(torch, name)(matrix, dense)
    return PRODUCTS[name]


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def applied(job: Job) -> Iterator[Applied]:
    torch.manual_seed(7)
    with switched(boost, job=job) as applied:
        yield applied
    assert (torch.mm, torch.matmul, functional.linear) == ORIGINALS
    assert not any(name in vars(torch.Tensor) for name in ("mm", "matmul", "__matmul__"))


def graph(size: int = 300, share: float = 0.01, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An adjacency matrix."""
    generator = torch.Generator().manual_seed(1)
    there = torch.rand(size, size, generator=generator) < share
    return (there * torch.randn(size, size, generator=generator)).to(dtype)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_gradients_are_those_of_the_program(
    name: str, dtype: torch.dtype, applied: Applied
) -> None:
    matrix, product = graph(dtype=dtype), looked_up(name)
    dense = torch.randn(300, 8, dtype=dtype, requires_grad=True)
    written = PRODUCTS[name](matrix.clone(), dense)  # each product of a matrix not met before
    (usual,) = torch.autograd.grad(written.square().sum(), dense)
    assert taken(applied) == 0
    for _ in range(3):
        result = product(matrix, dense)
        (gradient,) = torch.autograd.grad(result.square().sum(), dense)
    assert taken(applied) == 2, "the first time the matrix was not known yet"
    assert result.dtype is written.dtype and result.layout is torch.strided
    assert torch.allclose(result, written, atol=LARGEST_DIFFERENCE)
    assert torch.allclose(gradient, usual, atol=LARGEST_DIFFERENCE, rtol=1e-4)


def test_gradients_of_gradients(applied: Applied) -> None:
    matrix = graph(dtype=torch.float64)
    dense = torch.randn(300, 2, dtype=torch.float64, requires_grad=True)

    def second(matrix: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad((matrix @ dense).pow(3).sum(), dense, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), dense)[0]

    written = second(matrix.clone())
    second(matrix)
    assert torch.allclose(second(matrix), written)
    assert taken(applied) > 0


def test_under_autocast_the_result_is_what_the_program_expects(applied: Applied) -> None:
    matrix, layer = graph(), nn.Linear(300, 8)
    with torch.autocast("cpu", torch.bfloat16):
        written = layer(matrix.clone())
        for _ in range(2):
            result = layer(matrix)
        assert result.dtype is written.dtype is torch.bfloat16
        functional.mse_loss(result, torch.zeros(300, 8)).backward()  # type: ignore[no-untyped-call]
    assert taken(applied) == 1
    assert torch.allclose(result, written, atol=0.02)
    assert layer.weight.grad is not None and layer.weight.grad.dtype is torch.float32


def test_autocast_leaves_doubles_alone(applied: Applied) -> None:
    matrix, dense = graph(dtype=torch.float64), torch.randn(300, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            result = matrix @ dense
    assert result.dtype is torch.float64
    assert taken(applied) == 0


def test_in_inference_mode(applied: Applied) -> None:
    matrix, layer = graph(), nn.Linear(300, 8)
    for _ in range(2):
        layer(matrix)
    with torch.inference_mode():
        inside = graph()  # has no version that could be compared
        for _ in range(3):
            assert torch.allclose(layer(matrix), layer(inside), atol=LARGEST_DIFFERENCE)
    assert taken(applied) == 4


def written_through_numpy(matrix: torch.Tensor) -> None:
    matrix.numpy()[3, 5] += 1.0


def written_in_place(matrix: torch.Tensor) -> None:
    matrix[3, 5] += 1.0


def written_through_data(matrix: torch.Tensor) -> None:
    matrix.data[3, 5] += 1.0


def moved_by_numpy(matrix: torch.Tensor) -> None:
    """As many elements, in other places."""
    array = matrix.numpy()
    array[:] = np.roll(array, 1, axis=0)


def given_other_memory(matrix: torch.Tensor) -> None:
    matrix.data = matrix.data * 2


@pytest.mark.parametrize(
    "change",
    [
        written_through_numpy,
        written_in_place,
        written_through_data,
        moved_by_numpy,
        given_other_memory,
    ],
)
@pytest.mark.parametrize("evaluation", [False, True])
def test_a_matrix_that_changes_is_multiplied_as_written(
    change: Callable[[torch.Tensor], None], evaluation: bool, applied: Applied, job: Job
) -> None:
    matrix, dense = graph(), torch.randn(300, 8)
    for _ in range(3):
        matrix @ dense
    assert taken(applied) == 2
    change(matrix)
    job.steps += not evaluation
    with torch.set_grad_enabled(not evaluation):
        result = matrix @ dense
    assert torch.equal(result, matrix.clone() @ dense)
    for _ in range(4):
        matrix @ dense
    assert taken(applied) == 2, "and is left alone from then on"


@pytest.mark.parametrize(
    "matrix",
    [
        graph(share=0.2),
        graph(200),  # small
        graph().t(),
        graph().requires_grad_(),
        nn.Parameter(graph()),
        graph().to(torch.bfloat16),
        graph().to_sparse(),
        torch.stack([graph(), graph()]),
    ],
    ids=["dense", "small", "strided", "learned", "parameter", "half", "sparse", "batch"],
)
def test_other_matrices_are_multiplied_as_written(matrix: torch.Tensor, applied: Applied) -> None:
    dense = torch.randn(matrix.shape[-1], 8, dtype=matrix.dtype)
    for _ in range(3):
        result = matrix @ dense
    assert taken(applied) == 0
    assert torch.equal(result.to_dense(), (matrix.clone() @ dense).to_dense())


def test_a_wrong_product_raises_what_torch_raises(applied: Applied) -> None:
    matrix = graph()
    for _ in range(3):
        matrix @ torch.randn(300, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        matrix @ torch.randn(200, 8)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(matrix, torch.randn(300, 8, dtype=torch.float64))
    out = torch.empty(300, 8)
    assert torch.mm(matrix, torch.randn(300, 8), out=out) is out


SPARSE_PRODUCTS = {
    "sparse.mm": lambda matrix, dense: torch.sparse.mm(matrix, dense),
    "spmm": lambda matrix, dense: torch.spmm(matrix, dense),
    "mm": lambda matrix, dense: torch.mm(matrix, dense),
    "@": lambda matrix, dense: matrix @ dense,
}


@pytest.mark.parametrize("name", SPARSE_PRODUCTS)
@pytest.mark.parametrize("coalesced", [True, False])
def test_sparse_matrices_are_taken_too(name: str, coalesced: bool, applied: Applied) -> None:
    matrix, dense = graph().to_sparse(), torch.randn(300, 80, requires_grad=True)
    if not coalesced:
        matrix = matrix.t()
    assert matrix.is_coalesced() is coalesced
    for _ in range(3):
        result = SPARSE_PRODUCTS[name](matrix, dense)
        (found,) = torch.autograd.grad(result.square().sum(), dense)
    assert taken(applied) == 2
    expected = matrix.to_dense() @ dense
    (gradient,) = torch.autograd.grad(expected.square().sum(), dense)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bare", [False, True], ids=["as torch knows it", "behind its back"])
def test_a_sparse_matrix_that_changes_is_taken_as_it_is(
    bare: bool, job: Job, applied: Applied
) -> None:
    matrix, dense = graph().to_sparse().coalesce(), torch.randn(300, 80)
    for _ in range(2):
        torch.sparse.mm(matrix, dense)
    if bare:
        matrix._values().data.numpy()[:] *= 2
    else:
        matrix *= 2
    job.steps += 1
    torch.testing.assert_close(torch.sparse.mm(matrix, dense), matrix.to_dense() @ dense)


def test_sparse_matrices_with_a_gradient_are_left_alone(applied: Applied) -> None:
    matrix = graph().to_sparse().coalesce().requires_grad_()
    for _ in range(3):
        torch.sparse.mm(matrix, torch.randn(300, 80)).sum().backward()
    assert taken(applied) == 0
    assert matrix.grad is not None


def test_a_matrix_that_the_program_drops_is_not_kept(applied: Applied) -> None:
    products = sparse_products()
    matrix = graph()
    for _ in range(3):
        matrix @ torch.randn(300, 8)
    del matrix
    assert not products.constants._met


def test_a_torch_without_sparse_products_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise RuntimeError("Calling addmm on a sparse CPU tensor requires compiling with MKL")

    monkeypatch.setattr(engine, "product", missing)
    monkeypatch.setattr(sparse_products(), "why_not", sparse_products()._tried())
    with pytest.raises(Declined, match="no sparse product here: Calling addmm"):
        boost.apply(Job(), nn.Linear(2, 2), {})
