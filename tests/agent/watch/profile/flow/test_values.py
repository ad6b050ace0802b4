"""Embeddings updated whole and ignored logits, in steps of small loops."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from agent.watch.profile.flow.steps import mark
from agent.watch.profile.flow.steps import of_loss as followed

CLASSES, WIDTH, ROWS = 512, 64, 256


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
