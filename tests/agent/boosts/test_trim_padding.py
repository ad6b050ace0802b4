"""trim-padding: the same gradients from shorter batches, and as written where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatout_agent.boost import Declined
from flatout_agent.boosts import trim_padding as boost
from flatout_agent.job import Job
from flatout_agent.speedups import padding
from switched import switched, told

FULL, ROWS, WORDS, LONGEST = 64, 6, 40, 21


def batch(longest: int = LONGEST, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """Words, mask and one label for each word, padded to FULL."""
    lengths = torch.randint(3, longest + 1, (rows,))
    lengths[0] = longest
    mask = torch.arange(FULL) < lengths[:, None]
    ids = torch.randint(1, WORDS, (rows, FULL)) * mask
    labels = torch.where(mask, torch.randint(WORDS, (rows, FULL)), -100)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


class Attending(nn.Module):
    """A transformer that attends to no padding. Its outputs are a dict, with a loss if asked."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, 32), nn.Embedding(FULL, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, WORDS)
        self.lengths: list[int] = []

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any = None) -> Any:
        self.lengths.append(input_ids.shape[1])
        x = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        x = self.body(x, src_key_padding_mask=attention_mask == 0)
        found = {"logits": self.out(x), "first": x[:, 0]}
        if labels is not None:
            found["loss"] = loss(found["logits"], labels)
        return found


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def gradients(model: nn.Module, train: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """The loss, then the gradient of each parameter."""
    model.zero_grad()
    value = train()
    value.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [value.detach(), *found]


def assert_same(model: nn.Module, train: Callable[[], torch.Tensor], cut: bool) -> None:
    written = gradients(model, train)
    with switched(boost, model) as applied:
        for _ in range(2):
            torch.testing.assert_close(gradients(model, train), written)
    assert told(applied)[0] is cut, told(applied)


def test_the_gradients_are_those_of_the_whole_batch_with_the_loss_in_the_model_or_outside():
    model, given = Attending(), batch()
    assert_same(model, lambda: model(**given)["loss"], True)
    ids, mask, labels = given.values()
    assert_same(model, lambda: loss(model(ids, mask)["logits"], labels), True)
    assert {FULL, 24} == set(model.lengths)


def test_outputs_have_their_shapes_and_zeros_where_the_batch_was_cut():
    model, given = Attending(), batch()
    written = model(**given)
    with switched(boost, model):
        found = model(**given)
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in written.items()
    }
    assert torch.equal(found["logits"][:, 24:], torch.zeros(ROWS, FULL - 24, WORDS))
    torch.testing.assert_close(found["first"], written["first"])


def test_a_last_batch_of_fewer_rows_and_an_evaluation():
    model = Attending()
    with switched(boost, model):
        model(**batch())
        assert model(**batch(rows=4))["logits"].shape == (4, FULL, WORDS)
        model.lengths.clear()
        model.eval()
        model(**batch())
        with torch.no_grad():
            model.train()(**batch())
    assert model.lengths == [FULL, FULL]


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given | {"input_ids": given["input_ids"].flip(1)},  # padded on the left
        lambda given: {name: value[:, :LONGEST] for name, value in given.items()},
        lambda given: {name: value[:1] for name, value in given.items()},
        lambda given: given | {"attention_mask": torch.ones_like(given["attention_mask"])},
        lambda given: given | {"labels": torch.randint(WORDS, (ROWS, FULL))},
    ],
)
def test_what_is_no_padding_at_the_end_is_left_alone(change):
    assert padding.padded((), change(batch())) == 0.0


@pytest.mark.parametrize(
    ("more", "cut"),
    [
        (torch.arange(FULL).expand(ROWS, FULL), 24),  # positions
        (torch.arange(FULL)[None], 24),
        (torch.zeros(ROWS, FULL, dtype=torch.int64), 24),  # kinds of segments
        (torch.zeros(ROWS, 1, FULL, FULL), 24),  # a mask that is added
        (torch.zeros(ROWS), 24),  # a number for each row
        (torch.zeros(2, FULL, 3), None),  # neither for each row nor for all
        (FULL, None),
    ],
)
def test_other_inputs_are_cut_with_the_words_or_nothing_is(more, cut):
    words = batch()["input_ids"]
    found = padding.lengths((words, more), {})
    assert (None if found is None else found.cut()) == (None if cut is None else (cut,))
    if found is not None and isinstance(more, torch.Tensor) and FULL in more.shape:
        assert set(padding._some(more, found, None).shape) <= {ROWS, 1, 24}


class Translating(nn.Module):
    """Source and target of lengths of their own; the outputs have that of the target."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, WORDS)
        self.seen: list[tuple[int, int]] = []

    def forward(self, source: Any, target: Any) -> Any:
        self.seen.append((source.shape[1], target.shape[1]))
        near = self.source(source)
        found, _ = self.attention(self.target(target), near, near, source == 0)
        return self.out(found), near


def test_source_and_target_have_lengths_of_their_own():
    model, source = Translating(), batch()["input_ids"]
    target = batch(9)["input_ids"][:, :48]
    labels = torch.where(target == 0, -100, target)

    def train() -> torch.Tensor:
        logits, near = model(source, target)
        assert logits.shape == (ROWS, 48, WORDS)
        assert near.shape == (ROWS, FULL, 16)
        return loss(logits, labels)

    assert_same(model, train, True)
    assert (24, 16) in model.seen


COMPUTED: list[int] = []
"""Words that a call of `Losses` computed."""


@pytest.fixture
def by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word takes a second."""
    monkeypatch.setattr(padding, "perf_counter", lambda: float(sum(COMPUTED)))


@pytest.fixture
def by_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes a second."""
    monkeypatch.setattr(padding, "perf_counter", lambda: float(len(COMPUTED)))


class Losses(nn.Module):
    """A loss in the model, of one of several kinds; `seen`: the shapes of the inputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.out, self.kind = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS), kind
        self.drop, self.norm = nn.Dropout(0.0), nn.LayerNorm(32)
        self.seen: list[tuple[int, int]] = []

    def forward(self, input_ids: Any, labels: Any) -> Any:
        self.seen.append(tuple(input_ids.shape))
        COMPUTED.append(input_ids.numel())
        used = (input_ids != 0)[..., None]
        x = self.norm(self.embed(input_ids)) * used
        if self.kind == "rows":
            logits = self.out(x.sum(1) / used.sum(1))
            return F.cross_entropy(logits, labels), logits
        if self.kind == "contrast":
            near = x.sum(1) @ x.sum(1).t()
            return F.cross_entropy(near, torch.arange(len(near))), near.diagonal()
        logits = self.out(torch.tanh(x.cumsum(1)))
        if self.kind == "shifted":
            return loss(logits[:, :-1].contiguous(), labels[:, 1:].contiguous()), logits
        if self.kind == "sum":
            flat = logits.view(-1, WORDS), labels.view(-1)
            return F.cross_entropy(*flat, reduction="sum"), logits
        return loss(logits, labels), logits


def uneven(rows: int = 16) -> dict[str, torch.Tensor]:
    """Half of the rows are short; the longest fills the batch."""
    given = batch(rows=rows)
    lengths = torch.linspace(3, FULL, rows).square().div(FULL).ceil().long()[torch.randperm(rows)]
    used = torch.arange(FULL) < lengths[:, None]
    ids = torch.randint(1, WORDS, (rows, FULL)) * used
    labels = torch.where(used, ids.clamp(min=1), -100)
    return given | {"input_ids": ids, "labels": labels}


@pytest.mark.usefixtures("by_words")
@pytest.mark.parametrize("kind", ["rows", "tokens", "shifted", "sum"])
def test_rows_of_like_length_are_computed_together(kind):
    model, given = Losses(kind), uneven()
    ids, labels = given["input_ids"], given["labels"]
    if kind == "rows":
        labels = labels[:, 0]
    assert_same(model, lambda: model(ids, labels=labels)[0], True)
    assert {rows for rows, _ in model.seen} == {16, 4}
    written = model(ids, labels=labels)[1]
    with switched(boost, model):
        found = model(ids, labels=labels)[1]
    assert found.shape == written.shape
    if kind == "rows":
        torch.testing.assert_close(found, written)
    else:
        used = ids != 0
        torch.testing.assert_close(found[used], written[used])


@pytest.mark.usefixtures("by_calls")
def test_parts_that_take_longer_than_the_batch_cut_to_its_longest_row_are_not_made():
    model, given = Losses("tokens"), uneven()
    longer = {name: F.pad(given[name], (0, FULL)) for name in ("input_ids", "labels")}
    longer["labels"][:, FULL:] = -100
    assert_same(model, lambda: model(**longer)[0], True)
    model.seen.clear()
    with switched(boost, model):
        model(**longer)
    assert model.seen == [(16, FULL)]


def test_rows_that_depend_on_each_other_are_not_parted():
    model, given = Losses("contrast"), uneven()
    ids = torch.cat([given["input_ids"], torch.zeros(16, 64, dtype=torch.int64)], 1)
    assert_same(model, lambda: model(ids, labels=ids)[0], True)
    assert (16, 64) in model.seen
    model.seen.clear()
    with switched(boost, model):
        model(ids, labels=ids)
    assert model.seen == [(16, 64)]


def test_a_model_that_normalizes_over_the_batch_is_not_parted():
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Flatten(0, 1), nn.BatchNorm1d(8))
    assert padding.WithoutPadding(model)._whole


@pytest.mark.usefixtures("by_words")
def test_batches_of_other_lengths_need_no_new_look_at_the_outputs():
    model, given = Losses("tokens"), uneven()
    with switched(boost, model):
        model(given["input_ids"], labels=given["labels"])
        model.seen.clear()
        for length in (60, 52, 40):
            ids, labels = given["input_ids"][:, :length], given["labels"][:, :length]
            assert model(ids, labels=labels)[1].shape == (16, length, WORDS)
    assert {rows for rows, _ in model.seen} == {8}


class OfOneLength(nn.Module):
    """Weights for this very length: shorter inputs raise; `flat`: outputs without a length."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(WORDS, 8), nn.Dropout(0.5)
        self.places = nn.Parameter(torch.randn(1 if flat else FULL, 8))
        self.flat = flat
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        found = self.drop(self.embed(x) + self.places)
        return found.flatten(0, 1) if self.flat else found


@pytest.mark.parametrize("flat", [False, True])
def test_a_model_that_cannot_be_called_with_less_goes_on_as_written(flat):
    model, given = OfOneLength(flat), batch()["input_ids"]
    torch.manual_seed(1)
    written = model(given), torch.rand(1)
    with switched(boost, model) as applied:
        torch.manual_seed(1)
        assert torch.equal(model(given), written[0])
        assert torch.equal(torch.rand(1), written[1])
        assert model.calls == 2
        took, why = told(applied)
    assert not took
    assert why.startswith(padding.REFUSED)


def test_an_error_of_the_program_stays_its_own():
    model, given = Attending(), batch()
    given["input_ids"][0, 0] = WORDS
    with switched(boost, model), pytest.raises(IndexError, match="index out of range"):
        model(**given)


def test_inputs_that_cannot_be_looked_at_are_passed_on(monkeypatch):
    def fails(*args: object) -> None:
        raise ValueError("no such tensor")

    monkeypatch.setattr(padding, "_used", fails)
    model, ids = nn.Embedding(WORDS, 8), batch()["input_ids"]
    with switched(boost, model) as applied:
        assert model(ids).shape == (ROWS, FULL, 8)
        assert applied.engaged() == (
            False,
            "its inputs cannot be looked at: ValueError('no such tensor')",
        )


def test_a_compiled_model_is_left_alone():
    model = Attending()
    model.compile(backend="eager")
    with pytest.raises(Declined, match="compiled"):
        boost.apply(Job(), model, {})
