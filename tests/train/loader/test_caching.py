"""Data sets held whole: the same batches, without loading them again."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset

import flatout
from flatout_train.errors import UsageError
from flatout_train.loader import sources
from flatout_train.loader.caching import Columns, columns_of


class Counting(Dataset):
    """Costly samples; counts the reads in shared memory, so that those in workers count too."""

    def __init__(self, samples: int = 40, change: Callable[[Any], Any] = lambda x: x) -> None:
        self.reads = torch.zeros(samples, dtype=torch.int64).share_memory_()
        self.change = change
        self.scale = 1

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return {"x": self.change(torch.full((3,), float(index * self.scale))), "y": index}


def content(loader: Any) -> list[Any]:
    return [{key: part.tolist() for key, part in batch.items()} for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_is_loaded_once_and_batches_stay_the_same(workers: int) -> None:
    dataset = Counting()
    loader = flatout.loader(dataset, 8, shuffle=True, workers=workers, cache="host")
    plain = flatout.loader(Counting(), 8, shuffle=True, workers=0, cache=False)
    first = content(loader)
    reads = dataset.reads.clone()
    assert [first, content(loader), content(loader)] == [content(plain) for _ in range(3)]
    assert torch.equal(dataset.reads, reads)
    if not workers:  # they begin anew with the cache, and what they had loaded is loaded again
        assert int(dataset.reads.sum()) == 40 + 8  # four drawn twice to see that they are equal
    assert loader.notes["cache"] == "0.0 MB on cpu"


def test_a_cache_is_filled_bit_by_bit_where_an_epoch_leaves_samples_out() -> None:
    dataset = Counting()
    loader = flatout.loader(dataset, 16, shuffle=True, workers=0, cache="host", drop_last=True)
    plain = flatout.loader(Counting(), 16, shuffle=True, workers=0, cache=False, drop_last=True)
    for _ in range(6):
        assert content(loader) == content(plain)
    assert int(dataset.reads.sum()) == 40 + 8


RANDOM = {
    "torch": lambda x: x + torch.rand(1),
    "python": lambda x: x + random.random(),
    "numpy": lambda x: x + np.random.rand(),
    "drawn, seldom used": lambda x: x + 1 if torch.rand(1) < 1e-9 else x,
    "the system": lambda x: x + secrets.randbelow(2**30),
}


@pytest.mark.parametrize("kind", list(RANDOM))
def test_random_samples_are_not_cached(kind: str) -> None:
    loader = flatout.loader(Counting(change=RANDOM[kind]), 8, workers=0)
    assert len(list(loader)) == 5
    assert loader.notes["cache"].startswith("no: dataset[0] ")
    with pytest.raises(UsageError, match=r"cache='host': dataset\[0\]"):
        list(flatout.loader(Counting(change=RANDOM[kind]), 8, workers=0, cache="host"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_turns_out_random_later_ends_the_cache(workers: int) -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(1) if x[0] == 33 else x

    loader = flatout.loader(Counting(change=change), 8, workers=workers, cache="host")
    plain = flatout.loader(Counting(change=change), 8, workers=0, cache=False)
    found = [content(loader) for _ in range(2)]
    assert found == [content(plain) for _ in range(2)]
    assert found[0] != found[1]
    assert loader.notes["cache"] == "no: a sample draws random numbers"


def test_a_data_set_that_was_changed_is_loaded_again() -> None:
    dataset = Counting()
    loader = flatout.loader(dataset, 8, workers=0, cache="host")
    first = content(loader)
    assert content(loader) == first
    dataset.scale = 2
    assert content(loader)[1]["x"][0] == [16.0, 16.0, 16.0]
    assert loader.notes["cache"] == "no: the data set has changed since"


def test_a_cache_that_does_not_fit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "spare_memory", lambda: 100)
    monkeypatch.setattr("flatout_train.loader.feeding.CHEAP_S", {True: 0.0, False: 0.0})
    loader = flatout.loader(Counting(), 8, workers=0)
    list(loader)
    assert loader.notes["cache"] == "no: 0 MB do not fit into 0 MB of free memory"
    with pytest.raises(UsageError, match="cache='host': 0 MB do not fit into 0 MB"):
        list(flatout.loader(Counting(), 8, workers=0, cache="host"))


def test_resuming_with_a_cache_gives_the_very_next_batch() -> None:
    loader = flatout.loader(Counting(), 8, shuffle=True, workers=0, cache="host")
    epochs = [content(loader) for _ in range(3)]
    for made in (flatout.loader(Counting(), 8, shuffle=True, workers=0, cache="host"), loader):
        made.load_state_dict(
            {**loader.state_dict(), "epoch": 1, "mark": {"position": 16, "group": 8}}
        )
        assert content(made) == epochs[1][2:]
        assert content(made) == epochs[2]


class Pair(NamedTuple):
    x: Any
    y: Any


TENSORS = {
    "tensor": lambda x, y: x,
    "array": lambda x, y: x.numpy(),
    "TensorDataset": TensorDataset,
    "tuple": lambda x, y: (x.numpy(), y),
    "NamedTuple": Pair,
    "dict": lambda x, y: {"x": x, "y": y.numpy()},
    "Subset": lambda x, y: Subset(Subset(TensorDataset(x, y), range(0, 60, 2)), range(25)),
}


@pytest.mark.parametrize("kind", list(TENSORS))
@given(data=st.data())
def test_tensors_are_batched_as_torch_batches_their_samples(kind: str, data: Any) -> None:
    x, y = torch.arange(180.0).view(60, 3), torch.arange(60, dtype=torch.uint8)
    columns = columns_of(TENSORS[kind](x, y))
    assert columns is not None
    wanted = data.draw(st.lists(st.integers(0, len(columns) - 1), min_size=1, max_size=9))
    batch = columns.take(torch.tensor(wanted))
    rows = [2 * index for index in wanted] if kind == "Subset" else wanted
    parts = [batch] if isinstance(batch, torch.Tensor) else list(columns_parts(batch))
    for part, whole in zip(parts, (x, y), strict=False):
        assert torch.equal(part, whole[rows])
        assert part.data_ptr() != whole.data_ptr()
    assert isinstance(batch, Pair) == (kind == "NamedTuple")


def columns_parts(batch: Any) -> Any:
    return batch.values() if isinstance(batch, dict) else batch


def test_what_is_not_tensors_alone_is_loaded_sample_by_sample() -> None:
    class Own(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] * 2

    assert columns_of(Own(torch.ones(3))) is None
    assert columns_of([torch.ones(3)]) is None
    assert columns_of((torch.ones(3), "names")) is None
    with pytest.raises(UsageError, match="cannot become a tensor"):
        columns_of(np.array(["a", "b"]))
    with pytest.raises(UsageError, match="is 0-d"):
        columns_of(torch.tensor(1))


def test_a_read_only_array_and_one_on_disk_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(10, 2))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    batches = list(flatout.loader(array, 4))
    assert batches[2].tolist() == [[16, 17], [18, 19]]
    batches[0].zero_()
    assert array[0, 1] == 1


def test_a_tensor_changed_in_place_between_epochs_is_seen() -> None:
    data = torch.arange(4)
    loader = flatout.loader(data, 4)
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    data += 10
    assert next(iter(loader)).tolist() == [10, 11, 12, 13]


@pytest.mark.gpu
def test_on_cuda_the_data_set_stays_on_the_device() -> None:
    data = TensorDataset(torch.arange(3000.0).view(1000, 3), torch.arange(1000))
    loader = flatout.loader(data, 64, shuffle=True)
    found = [batch for _ in range(2) for batch in loader]
    assert {part.device.type for batch in found for part in batch} == {"cuda"}
    assert "on cuda:0, which has" in loader.notes["cache"]
    torch.cuda.synchronize()
    plain = flatout.loader(data, 64, shuffle=True, device="cpu")
    for one, other in zip(found, [batch for _ in range(2) for batch in plain], strict=True):
        assert all(torch.equal(part.cpu(), same) for part, same in zip(one, other, strict=True))
    rows = Columns([torch.arange(9, device="cuda")], torch.tensor([3, 4]))
    assert rows.to(torch.device("cpu")).take(torch.tensor([1]))[0].tolist() == [4]


class Scaled(torch.utils.data.Dataset):
    def __init__(self):
        self.scale = 1.0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((2,), float(index)) * self.scale


@pytest.mark.parametrize("workers", [0, "auto"])
def test_a_data_set_that_changes_after_a_pass_that_was_broken_off_is_read_anew(workers):
    data = Scaled()
    loader = flatout.loader(data, 8, workers=workers, device="cpu")
    next(iter(loader))
    data.scale = 2.0
    assert torch.cat([*loader])[:, 0].tolist() == [2.0 * index for index in range(32)]
    assert "changed" in loader.notes["cache"]
    loader.close()
