"""Inputs of the counted steps: padding that all rows share; checkpoints that compute again."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset, default_collate

from agent.watch.profile.flow.steps import of_two
from flatout_agent import wire
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.notes import FlowNotes

ROWS, LENGTH, WIDTH, WORDS = 8, 64, 32, 100


class Model(nn.Module):
    """Mean of a row's words; with `again` a layer of it is checkpointed."""

    def __init__(self, padding_idx: int | None = 0, again: Any = None, flat: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=padding_idx)
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(LENGTH * WIDTH if flat else WIDTH, 2)
        self.again, self.flat = again, flat

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        if self.again is not None:
            x = checkpoint(self.layer, x, use_reentrant=self.again)
        else:
            x = self.layer(x)
        return self.head(x.flatten(1) if self.flat else x.mean(1))


def words(low: int = 10, high: int = 30, pad: int = 0, left: bool = False) -> torch.Tensor:
    """A batch of rows of these lengths, padded to LENGTH."""
    ids = torch.full((ROWS, LENGTH), pad)
    for row in range(ROWS):
        count = low + (high - low) * row // (ROWS - 1)
        here = slice(LENGTH - count, None) if left else slice(0, count)
        ids[row, here] = torch.randint(1, WORDS - 1, (count,))
    return ids


def followed(model: nn.Module, batch: Callable[[], Any]) -> wire.FlowSeen:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    flow = Flow([model], lambda: False)

    def step() -> None:
        args = batch()
        args = args if isinstance(args, tuple) else (args,)
        flow.inputs(args, {})
        optimizer.zero_grad()
        model(*args).square().mean().backward()
        optimizer.step()

    return of_two(flow, [model], step)


def text(where: str | None) -> str:
    file, _, line = (where or "").rpartition(":")
    return linecache.getline(file, int(line)).strip()


def test_padding_beyond_the_longest_row() -> None:
    row = followed(Model(), words).padding
    assert row is not None
    assert (row.path, row.shape, row.constant, row.left) == ("[0][0]", "8x64", 0, False)
    assert (row.longest, row.padded) == (30, pytest.approx(1 - 30 / LENGTH))
    assert row.filled == pytest.approx(20 / LENGTH, rel=0.05)
    assert text(row.where) == "ids = torch.full((ROWS, LENGTH), pad)"
    assert row.flops > 0.9


def test_on_the_left_or_with_another_number() -> None:
    row = followed(Model(), lambda: words(left=True)).padding
    assert row is not None
    assert (row.left, row.longest) == (True, 30)
    row = followed(Model(None), lambda: words(pad=WORDS - 1)).padding
    assert row is not None, "rows of different lengths show it"
    assert row.constant == WORDS - 1


def masked(pad: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    ids = words(pad=pad)
    ids[:, 3] = pad
    mask = torch.arange(LENGTH) < torch.linspace(10, 30, ROWS).long().unsqueeze(1)
    ids[~mask] = pad
    return ids, mask.long()


def test_a_mask_tells_even_of_a_number_that_is_a_word_as_well() -> None:
    row = followed(Model(None), masked).padding
    assert row is not None
    assert (row.masked, row.longest) == (True, 30)
    assert followed(Model(None), lambda: masked()[0]).padding is None, "not known without it"


def counts() -> torch.Tensor:
    """Numbers of a table, most of them zero, in its last columns all."""
    table = torch.randint(0, 3, (ROWS, LENGTH))
    table[:, 40:] = 0
    table[:, 0] = 0
    return table


@pytest.mark.parametrize(
    "batch",
    [
        counts,
        lambda: words(50, LENGTH),
        lambda: words(30, 60),
        lambda: torch.randint(1, WORDS, (ROWS, LENGTH)),
        lambda: torch.zeros(ROWS, LENGTH, dtype=torch.long),
    ],
    ids=["table", "one is whole", "little", "no padding", "zeros"],
)
def test_no_padding_or_little(batch: Callable[[], torch.Tensor]) -> None:
    assert followed(Model(), batch).padding is None


def test_a_constant_number_of_columns_is_data_unless_an_embedding_calls_it_padding() -> None:
    fixed = lambda: words(30, 30)  # noqa: E731
    assert followed(Model(None), fixed).padding is None
    assert followed(Model(0), fixed).padding is not None


def test_a_model_for_one_length() -> None:
    assert followed(Model(flat=True), words).padding is None


class Recurrent(Model):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x, _ = self.layer(self.embed(ids))
        return self.head(x[:, -1])


@pytest.mark.slow
def test_recurrent_layers_go_through_the_whole_length() -> None:
    model = Recurrent()
    model.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)  # type: ignore[assignment]
    seen = followed(model, words)
    assert seen.padding is not None
    assert seen.padding.s > 0.4 * seen.operators_s, "though most operators see one word a row"


def test_looking_changes_nothing_and_is_no_part_of_the_flow() -> None:
    ids, model = words(), Model()
    mask = ids != 0
    copy, state = ids.clone(), torch.get_rng_state()
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    flow.inputs((ids,), {"mask": mask})
    end()
    assert flow.notes.looks
    assert not flow.nodes
    assert torch.equal(ids, copy)
    assert torch.equal(torch.get_rng_state(), state)


class Frames(nn.Module):
    """Frames, each by itself; their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != LENGTH:
            x = x.transpose(1, 2)
        return self.head(self.layer(x).mean(1))


COUNTS = torch.tensor([10, 12, 30, 14, 20, 25, 11, 18])


def frames(pad: float = 0.0) -> torch.Tensor:
    x = torch.full((ROWS, LENGTH, 6), pad)
    for row, count in zip(x, COUNTS.tolist(), strict=True):
        row[:count] = torch.randn(count, 6)
    return x


def test_frames_of_features() -> None:
    row = followed(Frames(), frames).padding
    assert row is not None
    assert (row.shape, row.length, row.longest, row.masked) == ("8x64x6", 64, 30, False)
    assert text(row.where) == "x = torch.full((ROWS, LENGTH, 6), pad)"
    assert row.flops > 0.9
    row = followed(Frames(), lambda: frames(-1.0)).padding
    assert row is not None
    assert row.constant == -1


def silent(x: torch.Tensor) -> torch.Tensor:
    """With a frame of nothing among the others."""
    x[:, 3] = 0.0
    return x


def test_lengths_tell_even_where_zeros_are_data_as_well() -> None:
    assert followed(Frames(), lambda: silent(frames())).padding is None
    row = followed(Frames(), lambda: (silent(frames()), COUNTS)).padding
    assert row is not None
    assert (row.masked, row.longest) == (True, 30)
    longer = COUNTS + (torch.arange(ROWS) == 2) * 3  # the last frames of one row are silent
    row = followed(Frames(), lambda: (frames(), longer)).padding
    assert row is not None
    assert row.longest == 33
    row = followed(Frames(), lambda: (silent(frames()), COUNTS - 5)).padding
    assert row is None, "no lengths of these rows"


def test_the_length_last_is_padding_where_lengths_say_so() -> None:
    turned = lambda: frames().transpose(1, 2).contiguous()  # noqa: E731
    assert followed(Frames(), turned).padding is None
    row = followed(Frames(), lambda: (turned(), COUNTS)).padding
    assert row is not None
    assert (row.shape, row.length, row.longest) == ("8x6x64", 64, 30)


def test_masks_of_other_shapes() -> None:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = masked()
        return ids, mask[:, None, None].float()

    row = followed(Model(None), batch).padding
    assert row is not None
    assert row.masked


def observed() -> tuple[torch.Tensor, torch.Tensor]:
    """Series of which the last part is to be forecast, with what is known."""
    mask = (torch.arange(LENGTH) < 40).expand(ROWS, -1)
    return torch.randn(ROWS, LENGTH, 6) * mask.unsqueeze(2), mask


def test_a_mask_that_is_the_same_for_all_rows_tells_no_padding() -> None:
    assert followed(Frames(), observed).padding is None


@pytest.mark.parametrize("ignored", [False, True])
def test_positions_that_a_loss_asks_for_are_no_padding(ignored: bool) -> None:
    """As in tasks that answer after the question, or fill in a suffix."""
    model = Model(None)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answers = model.layer(model.embed(ids)).flatten(0, 1)
        targets = torch.where(ids == 0, -100 if ignored else 1, ids % WIDTH)
        return nn.functional.cross_entropy(answers, targets.flatten())

    model.forward = loss  # type: ignore[method-assign, assignment]
    assert (followed(model, words).padding is None) == (not ignored)


def test_a_table_is_no_batch_of_frames() -> None:
    def table() -> torch.Tensor:
        return frames()[..., 0]

    class Flat(nn.Linear):
        pass

    assert followed(Flat(LENGTH, 2), table).padding is None


def test_a_layer_along_the_length_needs_it() -> None:
    class Mixer(Frames):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(LENGTH, LENGTH)

        def forward(self, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            return super().forward(self.mix(x.transpose(1, 2)).transpose(1, 2))

    assert followed(Mixer(), lambda: (frames(), COUNTS)).padding is None


def test_as_many_rows_as_features_are_no_weights_for_the_length() -> None:
    """The gradient of a weight takes features x all positions, as a layer on whole rows would."""
    model = Model()
    model.embed = nn.Embedding(WORDS, ROWS, padding_idx=0)
    model.layer = nn.Sequential(nn.Linear(ROWS, WIDTH), nn.Linear(WIDTH, ROWS))
    model.head = nn.Linear(ROWS, 2)
    assert followed(model, words).padding is not None


def test_one_batch_may_have_a_long_row() -> None:
    batches = iter([words(10, 24), words(10, 54)])
    row = followed(Model(), lambda: next(batches)).padding
    assert row is not None
    assert row.longest == 54
    assert row.padded == pytest.approx(1 - (24 + 54) / 2 / LENGTH)


def test_rows_that_are_padded_one_by_one_and_then_stacked() -> None:
    def batch() -> torch.Tensor:
        rows = []
        for count in COUNTS.tolist():
            row = torch.zeros(LENGTH, dtype=torch.long)  # padded
            row[:count] = torch.randint(1, WORDS, (count,))
            rows.append(row)
        return torch.stack(rows)

    row = followed(Model(), batch).padding
    assert row is not None
    assert text(row.where).endswith("# padded")


class Collate:
    def __call__(self, rows: Any) -> torch.Tensor:
        return words()


class Loader:
    def __init__(self, collate: Any, dataset: Any = None) -> None:
        self.collate_fn, self.dataset = collate, dataset


class Samples:
    def __getitem__(self, index: int) -> torch.Tensor:
        return words()[index]


def test_where_no_operator_made_the_batch_the_function_that_collates_is_named() -> None:
    notes = FlowNotes()
    for collate in (Collate(), Collate().__call__, functools.partial(Collate())):
        notes.batch(Loader(collate))
        assert text(notes.collate) == "def __call__(self, rows: Any) -> torch.Tensor:"
    notes.batch(Loader(default_collate, Samples()))
    assert notes.collate is None
    assert text(notes.samples) == "def __getitem__(self, index: int) -> torch.Tensor:"
    notes.batch(Loader(default_collate, TensorDataset(words())))
    assert (notes.collate, notes.samples) == (None, None)
    notes.batch(None)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again(reentrant: bool) -> None:
    seen = followed(Model(again=reentrant), lambda: words(LENGTH, LENGTH))
    row = seen.recomputed
    assert row is not None
    assert text(row.where) == "x = checkpoint(self.layer, x, use_reentrant=self.again)"
    assert 2 <= row.operators <= 8, "none of the backward pass"
    assert row.bytes >= 2 * ROWS * LENGTH * WIDTH * 4
    assert 0.1 < row.flops < 0.35


def test_nothing_is_computed_again_without() -> None:
    assert followed(Model(), lambda: words(LENGTH, LENGTH)).recomputed is None


def test_padding_where_another_device_is_the_programs_default() -> None:
    rows = words()
    with torch.device("meta"):
        looked = FlowNotes()
        looked.inputs((rows,), {}, lambda tensor: -1)
    (look,) = looked.looks
    assert max(look.lengths) == 30


def test_inputs_under_vmap_are_not_looked_at() -> None:
    looked = FlowNotes()

    def called(ids: torch.Tensor) -> torch.Tensor:
        looked.inputs((ids,), {}, lambda tensor: -1)
        return ids + 1

    torch.vmap(called)(torch.zeros(3, ROWS, LENGTH, dtype=torch.long))
    assert (looked.looks, looked.whole) == ([], set())
