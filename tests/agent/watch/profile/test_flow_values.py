"""Zeros in products, embeddings updated whole and ignored logits, in steps of small loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from agent.watch.profile.flow_steps import mark
from agent.watch.profile.flow_steps import of_loss as followed
from flatout_agent import wire

CLASSES, WIDTH, ROWS = 512, 64, 256


def told(rows: Sequence[wire.ZerosSeen]) -> list[tuple[str, str]]:
    return [(mark(row.where), row.kind) for row in rows]


def test_a_one_hot_matrix_times_a_table() -> None:
    layer = nn.Linear(CLASSES, WIDTH, bias=False)

    def loss() -> torch.Tensor:
        index = torch.randint(0, CLASSES, (ROWS,))
        rows = F.one_hot(index, CLASSES).float()  # built
        return layer(rows).square().mean()  # multiplied

    (row,) = followed(layer, loss).zeros
    assert (mark(row.where), row.kind, row.table) == ("multiplied", "select", True)
    assert (mark(row.built_where), row.shape) == ("built", f"{ROWS}x{CLASSES}")
    assert row.density == 1 / CLASSES
    assert row.calls == 2  # forward, and the gradient of the weight
    assert row.built_s > 0
    assert row.flops > 0.9


def test_a_one_hot_matrix_that_adds_rows_up() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(ROWS, WIDTH)

    def loss() -> torch.Tensor:
        groups = F.one_hot(torch.randint(0, 64, (ROWS,)), 64).float()
        return (groups.t() @ layer(x)).square().mean()  # added

    assert told(followed(layer, loss).zeros) == [("added", "add")]


def test_a_dense_adjacency_matrix() -> None:
    nodes = 400
    layer = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(nodes, WIDTH)
    adjacency = torch.eye(nodes)
    adjacency[torch.arange(nodes), torch.arange(1, nodes + 1) % nodes] = 0.5

    def loss() -> torch.Tensor:
        h = layer(x)
        for _ in range(2):
            h = adjacency @ h  # spread
        return h.square().mean()

    (row,) = followed(layer, loss).zeros
    assert (mark(row.where), row.kind, row.table) == ("spread", "sparse", False)
    assert (row.calls, row.density, row.built_where) == (4, 2 / nodes, None)


def test_zeros_of_activations_dropout_and_states_are_none() -> None:
    first, second = nn.Linear(WIDTH, CLASSES), nn.Linear(CLASSES, WIDTH)
    model = nn.Sequential(first, second)
    x, state = torch.randn(ROWS, WIDTH), torch.zeros(ROWS, CLASSES)

    def loss() -> torch.Tensor:
        seldom = F.relu(first(x) - 5.0) + 0.0
        with torch.no_grad():
            teacher = second(F.relu(first(x) - 5.0))
        dropped = F.dropout(torch.ones(ROWS, CLASSES), 0.97)
        return (second(seldom) + second(dropped) + second(state) - teacher).square().mean()

    assert followed(model, loss).zeros == ()


def test_half_of_zeros_are_ordinary() -> None:
    layer = nn.Linear(CLASSES, WIDTH)
    x = torch.randn(ROWS, CLASSES).relu()
    assert followed(layer, lambda: layer(x).square().mean()).zeros == ()


class Words(nn.Module):
    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 16, **facts)
        self.bag = nn.EmbeddingBag(4000, 16)
        self.out = nn.Linear(16, 16)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        rows = self.words(index)  # looked up
        return self.out(rows.mean(1) + self.bag(index))  # looked up


def test_large_embeddings_with_dense_gradients() -> None:
    model = Words()
    index = torch.randint(0, 4000, (8, 8))
    distinct = index.unique().numel()
    words, bag = followed(model, lambda: model(index).square().mean()).embeddings
    assert (words.name, words.rows, words.width) == ("words.weight", 5000, 16)
    assert (words.indices, words.touched) == (64, distinct)
    assert (bag.name, bag.rows, bag.touched) == ("bag.weight", 4000, distinct)
    assert {mark(line) for row in (words, bag) for line in row.lines} == {"looked up"}


def test_sparse_tied_and_small_embeddings_are_none() -> None:
    index = torch.randint(0, 4000, (8, 8))
    sparse = Words(sparse=True)
    names = [row.name for row in followed(sparse, lambda: sparse(index).square().mean()).embeddings]
    assert names == ["bag.weight"]
    tied = Words()

    def loss() -> torch.Tensor:
        return (tied(index) @ tied.words.weight.t()).square().mean()

    assert [row.name for row in followed(tied, loss).embeddings] == ["bag.weight"]
    small, many = nn.Embedding(300, 16), torch.randint(0, 300, (8, 8))
    assert followed(small, lambda: small(many).square().mean()).embeddings == ()


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.x = torch.randn(16, 16, WIDTH)
        self.target = torch.randint(0, CLASSES, (16, 16))
        self.hidden = torch.rand(16, 16) < 0.15

    def logits(self, where: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.body(self.x)
        return self.head(hidden if where is None else hidden[where])  # computed

    def ignoring(self) -> torch.Tensor:
        target = self.target.masked_fill(~self.hidden, -100)
        return F.cross_entropy(self.logits().flatten(0, 1), target.flatten())  # ignored


def test_logits_that_the_loss_ignores() -> None:
    model = Head()
    (row,) = followed(model, model.ignoring).ignored
    used = int(model.hidden.sum())
    assert (mark(row.head_where), mark(row.loss_where)) == ("computed", "ignored")
    assert (row.classes, row.rows, row.used) == (CLASSES, 256, used)
    assert row.ignored == 256 - used
    assert 0.5 < row.flops < 1


def test_logits_that_are_selected_after_the_head() -> None:
    model = Head()

    def masked() -> torch.Tensor:
        return F.cross_entropy(model.logits()[model.hidden], model.target[model.hidden])

    def last() -> torch.Tensor:
        return F.cross_entropy(model.logits()[:, -1], model.target[:, -1])

    (row,) = followed(model, masked).ignored
    assert (row.rows, row.used, row.ignored) == (256, int(model.hidden.sum()), 0)
    (row,) = followed(model, last).ignored
    assert (row.rows, row.used) == (256, 16)


def test_logits_that_are_needed_are_none() -> None:
    model = Head()
    kept: list[torch.Tensor] = []

    def selected() -> torch.Tensor:
        return F.cross_entropy(model.logits(model.hidden), model.target[model.hidden])

    def every() -> torch.Tensor:
        return F.cross_entropy(model.logits().flatten(0, 1), model.target.flatten())

    def used_twice() -> torch.Tensor:
        logits = model.logits()
        loss = F.cross_entropy(logits[:, -1], model.target[:, -1])
        return loss + 0.01 * logits.square().mean()

    def keeping() -> torch.Tensor:
        logits = model.logits()
        kept.append(logits.detach())
        return F.cross_entropy(logits[:, -1], model.target[:, -1])

    for loss in (selected, every, used_twice, keeping):
        assert followed(model, loss).ignored == (), loss.__name__
