from __future__ import annotations

import collections
import dataclasses
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from flatout_train.errors import UsageError
from flatout_train.step.splitting import batch_size, split

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    note: str = "kept"


def holders(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nests of up to three levels; no list is as long as the batch (7 to 20 samples)."""
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
            st.builds(Pair, inner, inner),
            st.builds(Frozen, inner),
        ),
        max_leaves=6,
    )


def leaves(rows: int) -> st.SearchStrategy[Any]:
    sampled = st.sampled_from([(rows,), (rows, 2), (rows, 1, 3)]).map(torch.randn)
    shared = st.sampled_from([(), (3,), (1, rows), (rows + 1, rows)]).map(torch.randn)
    one_a_sample = st.sampled_from([[str(i) for i in range(rows)], list(range(rows))])
    return st.one_of(sampled, shared, one_a_sample, st.sampled_from(["text", 3, None]))


def joined(parts: list[Any], whole: Any, rows: int, outermost: bool = True) -> Any:
    """The batch put together again, by a rule of its own: what was cut is told from `whole`."""
    if isinstance(whole, Tensor):
        cut = whole.dim() > 0 and whole.shape[0] == rows
        assert all(part is whole for part in parts) or cut
        return torch.cat(parts) if cut else whole
    if isinstance(whole, list) and not outermost and len(whole) == rows:
        return [item for part in parts for item in part]
    if isinstance(whole, dict):
        return {
            key: joined([part[key] for part in parts], whole[key], rows, False) for key in whole
        }
    if isinstance(whole, Pair):
        return Pair(*(joined([p[i] for p in parts], whole[i], rows, False) for i in range(2)))
    if isinstance(whole, list | tuple):
        items = range(len(whole))
        return type(whole)(
            [joined([part[i] for part in parts], whole[i], rows, False) for i in items]
        )
    if isinstance(whole, Frozen):
        return Frozen(joined([part.x for part in parts], whole.x, rows, False), whole.note)
    assert all(part == whole for part in parts)
    return whole


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Frozen):
        return same(one.x, other.x)
    return one == other


@given(data=st.data(), rows=st.integers(7, 20))
def test_the_parts_put_together_are_the_batch(data: Any, rows: int) -> None:
    batch = (torch.randn(rows, 2), data.draw(holders(leaves(rows))))
    count = data.draw(st.integers(1, rows))
    parts = split(batch, count)
    sizes = [batch_size(part) for part in parts]
    assert len(parts) == count
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert same(joined(parts, batch, rows), batch)


def test_tensors_are_views_and_the_batch_stays_as_it_is() -> None:
    batch = {"x": torch.randn(4, 2), "rest": [torch.randn(4), "s"]}
    before = dict(batch)
    first, second = split(batch, 2)
    assert first["x"].data_ptr() == batch["x"].data_ptr()
    assert second["rest"][0].untyped_storage().data_ptr() == batch["rest"][0].data_ptr()
    assert batch == before


def test_lists_that_hold_fields_are_held() -> None:
    x, y, positions = torch.ones(2, 5), torch.ones(2, 3), torch.arange(5)
    (a, b), (c, d) = split([x, y], 2)  # as long as the batch, and the batch itself
    assert [part.shape for part in (a, b, c, d)] == [(1, 5), (1, 3), (1, 5), (1, 3)]
    first, _ = split({"pair": [x, y], "with": [x, positions], "size": (224, 256)}, 2)
    assert [part.shape for part in first["pair"]] == [(1, 5), (1, 3)]
    assert first["with"][1] is positions
    assert first["size"] == (224, 256)


def test_a_tensor_that_happens_to_have_the_batch_s_size_is_cut() -> None:
    first, _ = split({"x": torch.ones(4, 4), "positions": torch.arange(4)}, 2)
    assert first["positions"].tolist() == [0, 1]
    first, _ = split({"x": torch.ones(4, 4), "positions": torch.arange(4)[None]}, 2)
    assert first["positions"].shape == (1, 4)


def test_numpy_arrays_are_cut_and_read_only_mappings_become_dicts() -> None:
    numpy = pytest.importorskip("numpy")
    first, second = split(MappingProxyType({"x": torch.ones(3, 2), "n": numpy.arange(3)}), 2)
    assert type(first) is dict
    assert [*first["n"], *second["n"]] == [0, 1, 2]


def test_the_batch_encoding_of_hugging_face_keeps_its_type() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"ids": torch.arange(6).view(3, 2), "labels": torch.ones(3)})
    first, second = split(batch, 2)
    assert type(first) is type(batch)
    assert torch.equal(torch.cat([first["ids"], second["ids"]]), batch["ids"])
    assert second.labels.shape == (2,)
    assert batch["ids"].shape == (3, 2)


def test_packed_sequences_are_packed_anew() -> None:
    rows = [torch.randn(n, 2) for n in (4, 1, 3)]
    batch = (pack_sequence(rows, enforce_sorted=False), torch.arange(3))
    assert batch_size(batch) == 3
    parts = split(batch, 2)
    found = [row for part, _ in parts for row in unpack_sequence(part)]
    assert all(map(torch.equal, found, rows))
    assert [len(labels) for _, labels in parts] == [1, 2]


def test_nested_and_sparse_tensors_are_cut() -> None:
    rows = [torch.randn(n, 2) for n in (4, 1, 3)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    first, second = split({"x": nested, "s": torch.eye(3).to_sparse()}, 2)
    found = [*first["x"].unbind(), *second["x"].unbind()]
    assert all(map(torch.equal, found, rows))
    assert torch.equal(torch.cat([first["s"].to_dense(), second["s"].to_dense()]), torch.eye(3))


@pytest.mark.parametrize(
    ("batch", "rows"), [((torch.ones(()), torch.ones(5)), 5), ([1, "a"], None)]
)
def test_the_batch_size_is_of_the_first_tensor_that_has_one(batch: Any, rows: int | None) -> None:
    if rows is not None:
        assert batch_size(batch) == rows
        return
    with pytest.raises(UsageError, match="list has no tensor with a batch dimension"):
        batch_size(batch)


@pytest.mark.parametrize("parts", [0, 5])
def test_more_parts_than_samples_are_refused(parts: int) -> None:
    with pytest.raises(UsageError, match=f"4 samples cannot be split into {parts} parts"):
        split(torch.ones(4), parts)
