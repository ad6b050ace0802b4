"""Inputs of the counted steps: padding that all rows share; checkpoints that compute again."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flatout_agent import wire
from flatout_agent.watch.profile.flops import counter
from flatout_agent.watch.profile.flow import Flow
from flatout_agent.watch.profile.flow_notes import FlowNotes
from flatout_agent.watch.profile.flow_results import results

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
    end = counter([model], flow)
    assert end is not None
    for _ in range(2):
        args = batch()
        args = args if isinstance(args, tuple) else (args,)
        flow.inputs(args, {})
        optimizer.zero_grad()
        model(*args).square().mean().backward()
        optimizer.step()
        flow.next_step()
    end()
    assert flow.error is None
    seen = results(flow)
    assert seen is not None
    return seen


def text(where: str | None) -> str:
    file, _, line = (where or "").rpartition(":")
    return linecache.getline(file, int(line)).strip()


def test_padding_beyond_the_longest_row() -> None:
    row = followed(Model(), words).padding
    assert row is not None
    assert (row.path, row.shape, row.constant, row.left) == ("[0][0]", "8x64", 0, False)
    assert (row.longest, row.padded) == (30, pytest.approx(1 - 30 / LENGTH))
    assert row.filled == pytest.approx(20 / LENGTH, rel=0.05)
    assert text(row.where) == "ids[row, here] = torch.randint(1, WORDS - 1, (count,))"
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
