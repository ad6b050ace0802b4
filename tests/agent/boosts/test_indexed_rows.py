"""indexed-rows: the same rows, sums and errors, whatever the index and whoever asks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from flatout_agent.boost import Applied
from flatout_agent.boosts import indexed_rows as boost
from flatout_agent.job import Job
from switched import switched, told

NODES, EDGES, WIDE = 60, 300, 32


@pytest.fixture(autouse=True)
def functions_as_found() -> Iterator[None]:
    torch.manual_seed(0)
    before = dict(vars(torch.Tensor)), torch.index_select, torch.index_add, torch.scatter_add
    yield
    after = dict(vars(torch.Tensor)), torch.index_select, torch.index_add, torch.scatter_add
    assert after == before
    assert not boost._indexing().rows.orders._known


@contextlib.contextmanager
def stepping() -> Iterator[tuple[Callable[[], None], Applied]]:
    """A function that begins the next step, and what was applied."""
    job = Job()

    def step() -> None:
        job.steps += 1
        for callback in job.step_callbacks:
            callback()

    with switched(boost, job=job) as applied:
        yield step, applied


def edges() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(NODES, (EDGES,)), torch.randint(NODES - 5, (EDGES,))


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index": lambda x, source, target: x[source],
    "index_select": lambda x, source, target: x.index_select(0, source),
    "torch.index_select": lambda x, source, target: torch.index_select(x, 0, source),
    "index_add": lambda x, source, target: x.new_ones(NODES, WIDE).index_add(0, target, x[source]),
    "index_add_": lambda x, source, target: x.new_zeros(NODES, WIDE).index_add_(
        0, target, x[source] * 2
    ),
    "torch.index_add": lambda x, source, target: torch.index_add(x, 0, target, x[source]),
    "scatter_add": lambda x, source, target: x.new_zeros(NODES, WIDE).scatter_add(
        0, target[:, None].expand(-1, WIDE), x[source]
    ),
    "scatter_add_": lambda x, source, target: x.new_zeros(NODES, WIDE).scatter_add_(
        0, target.unsqueeze(1).expand(EDGES, WIDE), x[source].sin()
    ),
    "twice": lambda x, source, target: x[source][target],
    "an index made anew": lambda x, source, target: x[torch.cat([source, target])],
}
OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a negative index": lambda x, source, target: x[source - NODES],
    "columns": lambda x, source, target: x.index_select(1, source % WIDE),
    "two indices": lambda x, source, target: x[source, target % WIDE],
    "mask": lambda x, source, target: x[x[:, 0] > 0],
    "number, slice, list": lambda x, source, target: x[3:50, 2] + x[[1, 2, 3] * 100].sum(),
    "alpha": lambda x, source, target: x.index_add(0, target, x[source[:EDGES]], alpha=2),
    "a whole index": lambda x, source, target: x.scatter_add(
        0, target[:, None].repeat(1, WIDE), x[source]
    ),
    "keywords": lambda x, source, target: x.index_add(dim=0, index=target, source=x[source]),
    "short index": lambda x, source, target: x[source.int()],
    "three dimensions": lambda x, source, target: x.view(NODES, 4, 8)[source],
    "rows apart": lambda x, source, target: x[:, ::2][source],
}


def values(use: Callable[..., Any], x: torch.Tensor, *ends: torch.Tensor) -> list[torch.Tensor]:
    """The result, its gradient, and the gradient of that."""
    result = use(x, *ends)
    (first,) = torch.autograd.grad((result.sin() * result).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return [result.detach(), first.detach(), second]


@pytest.mark.parametrize("name", [*USES, *OTHERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_as_without(name: str, dtype: torch.dtype) -> None:
    use = {**USES, **OTHERS}[name]
    x, ends = torch.randn(NODES, WIDE, dtype=dtype, requires_grad=True), edges()
    plain = values(use, x, *ends)
    with stepping() as (step, applied):
        for _ in range(4):
            step()
            for ours, theirs in zip(values(use, x, *ends), plain, strict=True):
                near = (1e-5 if dtype is torch.float32 else 1e-12) * float(theirs.abs().max())
                torch.testing.assert_close(ours, theirs, rtol=0, atol=near)
            with torch.no_grad():
                torch.testing.assert_close(use(x, *ends), plain[0], rtol=1e-5, atol=1e-5)
        if name in USES:
            engaged, detail = told(applied)
            assert engaged
            assert "summed in order 0 times" not in detail


def test_sums_from_zero_have_every_bit() -> None:
    x, (source, target) = torch.randn(NODES, WIDE, requires_grad=True), edges()
    plain = values(USES["index_add_"], x, source, target)
    with stepping() as (step, _):
        for _ in range(3):
            step()
            for ours, theirs in zip(
                values(USES["index_add_"], x, source, target), plain, strict=True
            ):
                assert torch.equal(ours, theirs)


def test_an_index_that_changes_in_place() -> None:
    x, (_, target) = torch.randn(EDGES, WIDE), edges()
    with stepping() as (step, _):
        for _ in range(6):
            step()
            target.add_(1).remainder_(NODES)
            target.numpy()[:7] += target.numpy()[7:14] == 3  # no version shows this
            result = torch.zeros(NODES, WIDE).index_add_(0, target, x)
            assert torch.equal(
                result, torch.ops.aten.index_add(torch.zeros(NODES, WIDE), 0, target, x)
            )


def test_sums_of_bfloat16_are_rounded_once() -> None:
    x, (source, target) = torch.randn(NODES, WIDE, requires_grad=True), edges()
    half = x.bfloat16()
    exact = USES["index_add_"](half.double(), source, target)
    with stepping() as (step, applied):
        for _ in range(3):
            step()
            total = USES["index_add_"](half, source, target)
            (gradient,) = torch.autograd.grad(half[source].float().square().sum(), half)
        error, least = ((sums.double() - exact).abs() for sums in (total, exact.bfloat16()))
        assert bool((error <= least).all())
        assert gradient.dtype is torch.bfloat16
        assert "summed in order 0 times" not in told(applied)[1]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(EDGES, WIDE)


def test_an_index_of_each_step_is_not_ordered(x: torch.Tensor) -> None:
    with stepping() as (step, applied):
        for _ in range(10):
            step()
            target = torch.randint(NODES, (EDGES,))
            for _ in range(3):
                torch.zeros(NODES, WIDE).index_add_(0, target, x)
        assert told(applied)[0] is False
        rows = boost._indexing().rows
        assert not rows.orders._known
        assert len(rows.orders._met) <= 8


def test_errors_are_torchs_own(x: torch.Tensor) -> None:
    wrong = torch.full((EDGES,), EDGES)
    calls: list[Callable[[], Any]] = [
        lambda: x[wrong],
        lambda: x.index_select(0, wrong),
        lambda: torch.zeros(NODES, WIDE).index_add_(0, wrong, x),
        lambda: torch.zeros(NODES, WIDE).index_add_(0, wrong[1:], x),
        lambda: x.requires_grad_().index_add_(0, wrong % 3, x),
    ]
    plain = [error_of(call) for call in calls]
    assert "no error" not in plain
    x.requires_grad_(False)
    with stepping() as (step, _):
        for _ in range(3):
            step()
            assert [error_of(call) for call in calls] == plain
            x.requires_grad_(False)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_an_index_that_is_written_between_the_passes_is_an_error() -> None:
    x, (source, _) = torch.randn(NODES, WIDE, requires_grad=True), edges()
    with switched(boost):
        total = x[source].sum()
        source.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_transforms_subclasses_and_inference() -> None:
    x, (source, _) = torch.randn(3, NODES, WIDE), edges()
    plain = torch.vmap(lambda each: each[source].sum(0))(x)
    with stepping() as (step, _):
        for _ in range(3):
            step()
            assert torch.equal(torch.vmap(lambda each: each[source].sum(0))(x), plain)
            with torch.inference_mode():
                assert torch.equal(x[0][source], torch.ops.aten.index_select(x[0], 0, source))
            assert type(x[0].as_subclass(Kind)[source]) is Kind


class Kind(torch.Tensor):
    pass


def test_a_graph_from_before_the_end() -> None:
    x, (source, _) = torch.randn(NODES, WIDE, requires_grad=True), edges()
    with switched(boost):
        total = x[source].sum()
    total.backward()
    assert x.grad is not None
    assert torch.equal(x.grad[:, 0], torch.bincount(source, minlength=NODES).float())


def test_few_numbers_are_left_alone() -> None:
    with switched(boost) as applied:
        x = torch.randn(10, 4)
        assert torch.equal(x[torch.tensor([1, 2])], x[1:3])
        assert told(applied) == (
            False,
            "no 4,096 numbers were picked or summed by an index of rows",
        )
