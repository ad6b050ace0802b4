from __future__ import annotations

import argparse
import linecache
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.data.dataloader import default_collate

from flatout_agent.speedups.samples import batch_reads, row_reads
from flatout_agent.speedups.samples.row_reads import read
from flatout_agent.speedups.samples.rows import Unreadable
from flatout_agent.speedups.samples.samples import same

COUNT = 40


class Held(Dataset[Any]):
    """Data as programs hold it, in each form."""

    scale = 255.0
    bins = 4

    def __init__(self, train: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(COUNT, 5)).astype(np.float32)
        self.wide = rng.normal(size=(COUNT, 6))
        self.y = rng.normal(size=COUNT).astype(np.float32)
        self.labels = rng.integers(0, 9, COUNT)
        self.images = rng.integers(0, 256, (COUNT, 4, 3, 3), dtype=np.uint8)
        self.t = torch.from_numpy(self.x.copy())
        self.ids = torch.arange(COUNT) % 7
        self.numbers = [float(v) for v in self.y]
        self.classes = [int(v) for v in self.labels]
        self.flags = [bool(v % 2) for v in self.labels]
        self.text = [f"word {v}" for v in self.labels]
        self.parts = [torch.full((2, 2), float(v)) for v in self.labels]
        self.columns = {"a": self.x, "b": self.labels}
        self.mean, self.std = self.x.mean(0), self.x.std(0)
        self.t_mean = self.t.mean(0)
        self.length = 6
        self.starts = list(range(0, COUNT - 6, 2)) * 3
        self.series = np.arange(COUNT + 9, dtype=np.float32)
        self.tokens = torch.arange(COUNT + 9)
        self.transform = None
        self.train = train
        self.args = argparse.Namespace(size=3)

    def __len__(self) -> int:
        return COUNT


class Pairs(Held):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Tutorial(Held):
    def __getitem__(self, idx: Any) -> Any:
        """As PyTorch's first tutorial writes it."""
        if torch.is_tensor(idx):
            idx = idx.tolist()
        sample = {"x": self.x[idx], "y": self.labels[idx]}
        if self.transform:
            sample = self.transform(sample)
        return sample


class Tensors(Held):
    def __getitem__(self, idx: int) -> Any:
        x = torch.tensor(self.x[idx], dtype=torch.float32)
        y = torch.tensor(self.classes[idx], dtype=torch.long)
        z = torch.tensor([self.numbers[idx]])
        return x, y, z, torch.tensor(self.y[idx]), torch.from_numpy(self.wide[idx]).float()


class Normalised(Held):
    def __getitem__(self, i: int) -> Any:
        x = (self.x[i] - self.mean) / self.std
        return x, self.t[i] - self.t_mean, self.t[i] * 2, -1.5 + self.y[i]


class Windows(Held):
    def __getitem__(self, i: int) -> Any:
        past = self.series[i : i + self.length]
        future = self.series[i + self.length : i + self.length + self.args.size]
        return past, future, self.tokens[i : i + self.length], self.tokens[i + 1 : i + 1 + 6]


class Strided(Held):
    def __getitem__(self, i: int) -> Any:
        start = self.starts[i]
        end = start + self.length
        return self.series[start:end].astype(np.float64), self.tokens[i // self.bins], i % 3


class Images(Held):
    def __getitem__(self, index: int) -> Any:
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).float() / self.scale
        flat = self.images[index].reshape(-1).astype(np.float32) / 255
        return (
            image,
            flat,
            torch.as_tensor(self.images[index]).unsqueeze(0),
            int(self.labels[index]),
        )


class Lists(Held):
    def __getitem__(self, i: int) -> Any:
        first, second = self.text[i], self.flags[i]
        return {"text": first, "flag": second, "part": self.parts[i], "n": self.numbers[i],
                "more": [self.classes[i], self.ids[i].item()], "i": i}  # fmt: skip


class Columns(Held):
    def __getitem__(self, i: int) -> Any:
        if self.train:
            return self.columns["a"][i, 1:], self.columns["b"][i], self.t[i, 0], self.x[i][2:4]
        return self.columns["a"][i]


class Chosen(Held):
    def __getitem__(self, i: int) -> Any:
        if self.transform is None and not (self.bins == 3 or self.args.size != 3):
            picked = self.t[self.ids[i]]
        else:
            picked = self.t[i]
        return picked.unsqueeze(-1), np.float32(self.wide[i, 0]), np.int64(self.labels[i])


class Twice(Held):
    def __getitem__(self, i: int) -> Any:
        x, t = self.x[i], self.t[i]
        return x, x, torch.from_numpy(x), t, t, t[1:], self.text[i], self.text[i]


class Words(Held):
    def __getitem__(self, i: int) -> Any:
        x = torch.tensor(self.starts[i : i + self.length], dtype=torch.long)
        y = torch.tensor(self.starts[i + 1 : i + self.length + 1])
        return x, y


class Older(Held):
    def __getitem__(self, i: int) -> Any:
        return torch.FloatTensor(self.wide[i]), torch.LongTensor(self.images[i].reshape(-1))


class Scaled(Held):
    def __getitem__(self, i: int) -> Any:
        window = self.series[i : i + self.length + self.bins]
        window = (window - self.y[3]) / (self.scale + 1e-8)
        x = (self.x[i] - self.mean) / (self.std + 1e-8)
        table = self.x[i // 2 : i // 2 + 4]
        first, later = window[: self.length], window[self.length :]
        return torch.from_numpy(first).float(), later, x, table[1:, 0], self.labels[i] % 3


READABLE = Held.__subclasses__()


@pytest.mark.parametrize("kind", READABLE)
@settings(max_examples=25, deadline=None)
@given(indices=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=70))
def test_a_batch_is_what_its_samples_collate_to(kind: Any, indices: list[int]) -> None:
    dataset = kind()
    expected = default_collate([dataset[i] for i in indices])
    assert same(read(dataset, indices), expected)
    numpy_indices = [np.int64(i) for i in indices]  # as SubsetRandomSampler gives them
    expected = default_collate([dataset[i] for i in numpy_indices])
    assert same(read(dataset, numpy_indices), expected)


@pytest.mark.parametrize("kind", READABLE)
def test_a_batch_owns_its_memory(kind: Any) -> None:
    dataset = kind()
    before = default_collate([dataset[i] for i in range(8)])
    leaves = torch.utils._pytree.tree_leaves(read(dataset, range(8)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert len({leaf.untyped_storage().data_ptr() for leaf in tensors}) == len(tensors)
    for leaf in tensors:
        assert leaf._base is None
        leaf.fill_(1)
    assert same(default_collate([dataset[i] for i in range(8)]), before)


@pytest.mark.parametrize(
    "nest",
    [
        lambda pairs: Subset(pairs, list(range(30, 3, -1))),
        lambda pairs: ConcatDataset([pairs, Subset(pairs, range(9))]),
    ],
)
def test_inside_of_torchs_own(nest: Any) -> None:
    dataset = nest(Pairs())
    assert batch_reads.why_not(dataset) is None
    order = torch.randperm(len(dataset)).tolist()
    expected = default_collate([dataset[i] for i in order])
    assert same(batch_reads.together(dataset, order), expected)


class Drawn(Held):
    @property
    def drawn(self) -> Any:
        return np.random.rand(COUNT)


def reading(body: str) -> Any:
    """A dataset with this `__getitem__`."""
    source = f"class Made(Drawn):\n def __getitem__(self, i):\n  {body}\n"
    linecache.cache[body] = len(source), None, source.splitlines(keepends=True), body
    names = {"Drawn": Drawn, "torch": torch, "random": random, "__name__": __name__}
    exec(compile(source, body, "exec", dont_inherit=True), names)
    made: Any = names["Made"]
    return made()


class Computed(Held):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)

    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class Parent(Pairs):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)


class Whole(Pairs):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[i] for i in indices[::-1]]


class Decorated(Held):
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __getitem__(self, i: int) -> Any:
        return self.x[i]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return self.t[i] + torch.randn(5)", "torch.randn(5)"),
        ("if random.random() < 0.5: return self.t[i]", "random.random()"),
        ("self.length += 1", "self.length += 1"),
        ("x = self.t[i]; x /= 2; return x", "x /= 2"),
        ("if i > 3: return self.x[i]", "i > 3"),
        ("if self.y[i] > 0: return self.x[i]", "self.y[i] > 0"),
        ("return self.x[i] / self.x[i].max()", "self.x[i].max()"),
        ("return self.y[i] * self.x[i]", "self.y[i] * self.x[i]"),
        ("return self.scaled(self.x[i])", "self.scaled(self.x[i])"),
        ("return self.drawn[i]", "self.drawn"),
        ("return int(self.x[i])", "int(self.x[i])"),
    ],
)
def test_what_does_more_than_look_up_rows(body: str, what: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(f"does more than look up rows: `{what}`")):
        read(reading(body), list(range(8)))


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Computed(), "Computed computes its attributes"),
        (Parent(), "Parent.__getitem__ uses names from around it"),
        (Whole(), "the dataset loads whole batches by itself"),
        (Decorated(), "differs from what runs"),
        (reading("return self.series[i : self.length + 2 * i]"), "its windows differ in length"),
    ],
)
def test_unreadable(dataset: Any, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(dataset, list(range(8)))


class Holds(Held):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def __getitem__(self, i: int) -> Any:
        return self.held[i]


@pytest.mark.parametrize(
    "held",
    [
        np.array([object()] * 9),
        np.arange(9).astype(">i4"),
        np.ones((9, 2, 3, 4)).transpose(0, 2, 1, 3),
        np.ma.masked_array(np.arange(9), mask=[0, 1] * 4 + [0]),
        torch.ones(9, 2).to_sparse(),
        torch.ones(9, requires_grad=True),
        [object()] * 9,
        [1, 2.0, 3, 4, 5, 6, 7, 8, 9],
        [torch.ones(1), torch.ones(2), *[torch.ones(2)] * 7],
        {0: 1, 1: 2},
    ],
    ids=lambda held: type(held).__name__,
)
def test_data_that_is_no_plain_rows(held: Any) -> None:
    with pytest.raises(Unreadable):
        read(Holds(held), [0, 1, 2])


@pytest.mark.parametrize(
    "held",
    [np.arange(9), np.arange(9)[::-1], np.arange(9, dtype=np.uint16), np.ones((9, 2))[:, ::-1],
     np.arange(9) > 4, torch.ones(9, 2).bfloat16(), tuple(range(9)), range(9)],
    ids=str,
)  # fmt: skip
def test_data_of_other_forms(held: Any) -> None:
    held = held if isinstance(held, (tuple, range, torch.Tensor)) else held.copy()
    dataset = Holds(held)
    expected = default_collate([dataset[i] for i in (3, 1, 1)])
    assert same(read(dataset, [3, 1, 1]), expected)


def test_data_in_a_file(tmp_path: Path) -> None:
    np.arange(50, dtype=np.int64).tofile(tmp_path / "tokens.bin")
    dataset = Windows()
    dataset.series = np.memmap(tmp_path / "tokens.bin", dtype=np.int64, mode="r+")
    expected = default_collate([dataset[i] for i in (3, 1, 20)])
    assert same(read(dataset, [3, 1, 20]), expected)


@pytest.mark.parametrize(("indices"), [[COUNT], [0, -1], [True, False], ["one"], [1.0]])
def test_indices_that_are_no_row_numbers(indices: list[Any]) -> None:
    with pytest.raises((Unreadable, IndexError)):
        read(Pairs(), indices)


def test_a_window_beyond_the_data() -> None:
    with pytest.raises(Unreadable, match="reaches beyond the data"):
        read(Windows(), [0, COUNT + 5])


def test_a_source_that_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    source = "class Mine:\n    def __getitem__(self, i):\n        return self.x[i]\n"
    path.write_text(source)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    function = names["Mine"].__getitem__
    assert not isinstance(row_reads._parsed(function), str)
    for change in (lambda: path.write_text(source.replace("x", "y")), path.unlink):
        change()
        linecache.checkcache()
        told = row_reads._parsed(function)
        assert told == "the source of Mine.__getitem__ differs from what runs"
