"""Boosts that put a function in the place of torch's: it is there as long as anyone holds it."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.boost import Declined
from flatout_agent.boosts import (
    bf16_residual,
    clip_grad,
    fast_dropout,
    fused_loss,
    indexed_rows,
    packed_sequences,
    slice_gradients,
    sparse_matmul,
)
from flatout_agent.job import Job

MODEL = nn.Linear(2, 2)
MATRIX = torch.eye(300)


def loses() -> None:
    functional.cross_entropy(torch.randn(6, 5, requires_grad=True), torch.zeros(6).long())


def embeds() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        functional.embedding(torch.tensor([1]), torch.ones(3, 2))


def multiplies() -> None:
    for _ in range(3):
        torch.mm(MATRIX, torch.ones(300, 8))


def clips() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    nn.utils.clip_grad_norm_([parameter], 1e3)


CELL: Any = nn.utils.clip_grad_norm_.__closure__[0]  # type: ignore[attr-defined]
Case = tuple[Any, nn.Module, Any, str, Callable[[], Any]]
CASES: dict[str, Case] = {
    "fast-dropout": (
        fast_dropout, MODEL, functional, "dropout", lambda: functional.dropout(torch.ones(10_000)),
    ),
    "fused-loss": (fused_loss, MODEL, torch._C._nn, "cross_entropy_loss", loses),
    "bf16-residual": (bf16_residual, nn.Embedding(3, 2), functional, "embedding", embeds),
    "sparse-matmul": (sparse_matmul, MODEL, torch, "mm", multiplies),
    "clip-grad": (clip_grad, MODEL, CELL, "cell_contents", clips),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_loss, "SMALLEST", 1)
    monkeypatch.setattr(fused_loss, "COLUMNS", 2)


@pytest.mark.parametrize("name", CASES)
def test_two_models_and_any_order_of_undoing(name: str) -> None:
    boost, model, owner, function, use = CASES[name]
    original = getattr(owner, function)
    for _ in range(2):
        first, second = (boost.apply(Job(), model, {}) for _ in range(2))
        first.undo()
        use()
        assert second.engaged()[0]
        second.undo()
        assert getattr(owner, function) is original


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"clip-grad"}))
def test_what_others_wrapped_since_stays_and_only_passes_on(name: str) -> None:
    boost, model, owner, function, use = CASES[name]
    original = getattr(owner, function)
    applied = boost.apply(Job(), model, {})
    theirs = functools.partial(getattr(owner, function))
    setattr(owner, function, theirs)
    try:
        applied.undo()
        assert getattr(owner, function) is theirs
        use()
        assert not applied.engaged()[0]
    finally:
        setattr(owner, function, original)


class Losing(nn.Module):
    """Its loss, as models of Transformers compute theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.target = nn.CrossEntropyLoss(), torch.zeros(6).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(x, self.target)
        return loss


class Own(torch.Tensor):
    pass


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode(function: Any, x: Any) -> None:
    with Watch():  # type: ignore[no-untyped-call]
        function(x)


def scripted(function: Any, x: Any) -> None:
    if isinstance(function, nn.Module):
        torch.jit.save(torch.jit.script(function), io.BytesIO())
        torch.jit.script(function)(x)


OF_ONE: dict[str, tuple[Any, torch.Tensor]] = {
    "fast-dropout": (nn.Dropout(), torch.ones(100, 100)),
    "fused-loss": (Losing(), torch.ones(6, 5, requires_grad=True)),
    "sparse-matmul": (lambda x: torch.mm(MATRIX, x), torch.ones(300, 8)),
}
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda function, x: torch.vmap(function, randomness="different")(torch.stack([x, x])),
    "grad": lambda function, x: torch.func.grad(lambda y: function(y).sum())(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x,)),
    "trace": lambda function, x: torch.jit.trace(function, x, check_trace=False),
    "script": scripted,
    "subclass": lambda function, x: function(x.as_subclass(Own)),
    "mode": in_a_mode,
    "compile": lambda function, x: torch.compile(function, backend="aot_eager", fullgraph=True)(x),
}
SLOW = [pytest.param(way, marks=pytest.mark.slow) if way == "compile" else way for way in WAYS]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("way", SLOW)
@pytest.mark.parametrize("name", OF_ONE)
def test_compilers_and_transforms_see_torchs_own(name: str, way: str) -> None:
    boost, model, *_ = CASES[name]
    function, x = OF_ONE[name]
    applied = boost.apply(Job(), model, {})
    try:
        for _ in range(3):  # a matrix is known from the second time on
            function(x)
        before = applied.engaged()
        assert before[0]
        WAYS[way](function, x)
        assert applied.engaged() == before
    finally:
        applied.undo()


def compiled() -> nn.Module:
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    return model


FOR_CPUS = [
    fast_dropout, fused_loss, indexed_rows, packed_sequences, slice_gradients, sparse_matmul,
]  # fmt: skip


@pytest.mark.parametrize("boost", FOR_CPUS, ids=lambda boost: boost.__name__.split(".")[-1])
def test_models_elsewhere_and_compiled_ones_are_declined(boost: Any) -> None:
    with pytest.raises(Declined, match="the model is on meta"):
        boost.apply(Job(), nn.Linear(2, 2, device="meta"), {})
    if boost is not fused_loss:  # compiled code calls torch's own
        with pytest.raises(Declined, match="the model is compiled"):
            boost.apply(Job(), compiled(), {})
