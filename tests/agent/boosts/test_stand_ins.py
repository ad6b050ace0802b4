"""Boosts that put a function in the place of torch's: it is there as long as anyone holds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatout_agent.boosts import bf16_residual, clip_grad, fast_dropout, fused_loss, sparse_matmul
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
