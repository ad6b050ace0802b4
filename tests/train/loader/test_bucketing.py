"""Batches of similar length: every sample once, little padding; and the collate that pads."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout_train.errors import UsageError
from flatout_train.loader import bucketing
from flatout_train.loader.bucketing import Pad


def ordered(lengths: torch.Tensor, group: int, seed: int = 0, **how: bool) -> torch.Tensor:
    chosen = {"shuffle": True, "drop_last": False, **how}
    return bucketing.order(lengths, group, torch.Generator().manual_seed(seed), **chosen)


@given(
    lengths=st.lists(st.integers(0, 300), max_size=400),
    group=st.integers(1, 50),
    seed=st.integers(0, 2**62),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once_and_the_order_follows_from_the_seed(
    lengths: list[int], group: int, seed: int, shuffle: bool, drop_last: bool
) -> None:
    known = torch.tensor(lengths, dtype=torch.int64)
    found = ordered(known, group, seed, shuffle=shuffle, drop_last=drop_last)
    assert sorted(found.tolist()) == list(range(len(lengths)))
    assert torch.equal(found, ordered(known, group, seed, shuffle=shuffle, drop_last=drop_last))


@given(samples=st.integers(1, 500), group=st.integers(1, 20))
def test_within_a_piece_the_groups_do_not_overlap_in_length(samples: int, group: int) -> None:
    lengths = torch.randperm(samples, generator=torch.Generator().manual_seed(samples))
    found = ordered(lengths, group)[: samples - samples % group].view(-1, group)
    if samples <= bucketing.STEPS_SORTED_TOGETHER * group:  # one piece
        ranges = sorted((int(row.min()), int(row.max())) for row in lengths[found])
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def test_much_less_is_padding_and_epochs_differ() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = (torch.randn(20_000, generator=generator).mul(0.6).exp() * 60).long().clamp(1)
    mixed = bucketing.padding_share(lengths, torch.randperm(20_000, generator=generator), 32)
    found = ordered(lengths, 32)
    assert mixed > 0.5
    assert bucketing.padding_share(lengths, found, 32) < 0.12
    assert not torch.equal(found, ordered(lengths, 32, seed=1))
    batches = lengths[found].view(-1, 32).float().mean(1)
    assert (batches.diff() > 0).float().mean() == pytest.approx(0.5, abs=0.1)


def test_what_drop_last_drops_is_at_random_of_any_length() -> None:
    lengths = torch.arange(19)
    dropped = {tuple(ordered(lengths, 10, seed, drop_last=True)[10:].tolist()) for seed in range(9)}
    assert len(dropped) == 9
    assert {length for rest in dropped for length in rest} == set(range(19))


def test_unshuffled_the_longest_come_first() -> None:
    assert ordered(torch.tensor([2, 9, 5, 9]), 2, shuffle=False).tolist() == [1, 3, 2, 0]


def test_padding_share_by_hand() -> None:
    lengths = torch.tensor([1, 3, 2, 4, 4])
    assert bucketing.padding_share(lengths, torch.arange(5), 2) == pytest.approx(4 / 18)


def test_lengths_that_cannot_be() -> None:
    assert bucketing.measured(["ab", "c"], 2, len).tolist() == [2, 1]
    with pytest.raises(UsageError, match="3 entries for 2 samples"):
        bucketing.measured(["ab", "c"], 2, [1, 2, 3])
    with pytest.raises(UsageError, match=r"lengths\[1\] is -1"):
        bucketing.measured(["ab", "c"], 2, [1, -1])
    with pytest.raises(UsageError, match="whole numbers"):
        bucketing.measured(["ab", "c"], 2, ["x", "y"])  # type: ignore[list-item]


def test_pad_makes_the_mask_and_marks_the_labels() -> None:
    samples = [
        {"input_ids": [5, 6, 7], "labels": torch.tensor([5, 6, 7]), "weight": 0.5},
        {"input_ids": [8], "labels": torch.tensor([8]), "weight": 1.5},
    ]
    batch = Pad(value=1)(samples)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1]]
    assert batch["labels"].tolist() == [[5, 6, 7], [8, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["attention_mask"].dtype == torch.int64
    assert batch["weight"].tolist() == [0.5, 1.5]


def test_a_mask_that_is_there_is_padded_and_kept() -> None:
    samples = [
        {"input_ids": [5, 6], "attention_mask": [1, 0]},
        {"input_ids": [7], "attention_mask": [1]},
    ]
    assert Pad()(samples)["attention_mask"].tolist() == [[1, 0], [1, 0]]


class Named(NamedTuple):
    text: torch.Tensor
    label: int


def test_pad_of_tensors_pairs_and_named_tuples() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert Pad()(rows).tolist() == [[1, 2], [3, 0]]
    text, target = Pad()([(rows[0], torch.tensor([1, 2])), (rows[1], torch.tensor([3]))])
    assert text.tolist() == [[1, 2], [3, 0]]
    assert target.tolist() == [[1, 2], [3, -100]]
    named = Pad()([Named(rows[0], 4), Named(rows[1], 5)])
    assert isinstance(named, Named)
    assert named.label.tolist() == [4, 5]
