from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import loaded
from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import batch_fetch as boost
from flatout_agent.job import Job
from flatout_agent.speedups.samples import batch_reads
from flatout_agent.watch.job_facts import loader_facts
from flatout_agent.wire import JobFacts, LoaderFacts
from loaded import seen, start

LOADER = LoaderFacts("TensorDataset", False, 4, 100, 0, False, False, "fork", False, read_singly="")
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", loaders=(LOADER,))


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
          torch.complex64]  # fmt: skip


def _table(count: int = 23, *, seed: int = 0) -> TensorDataset:
    numbers = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 5, generator=numbers),
        torch.randint(0, 9, (count,), generator=numbers),
    )


def _loader(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset or _table(), **{"batch_size": 4, **options})


def _apply(loader: Any) -> tuple[Job, Applied]:
    job = Job()
    return job, boost.apply(job, loader, {})


def _assert_same(make: Callable[[], Any]) -> None:
    told = loaded.told(boost, make)
    batches = len(make())
    if batches > 1:
        said = f"{3 * (batches - 1)} batches with one index operation for each tensor"
        assert told == (True, said)


NESTS: dict[str, Callable[[], Any]] = {
    "tensors": _table,
    "one tensor": lambda: TensorDataset(torch.arange(23.0)),
    "split": lambda: random_split(_table(60), [23, 37])[0],
    "nested subset": lambda: Subset(Subset(_table(60), range(1, 60, 2)), list(range(28, 3, -1))),
    "array of indices": lambda: Subset(_table(60), np.arange(40)[::-1]),  # type: ignore[arg-type]
    "tensor of indices": lambda: Subset(_table(60), torch.arange(30)),  # type: ignore[arg-type]
    "concat": lambda: ConcatDataset([_table(7), _table(9, seed=1), Subset(_table(50), range(9))]),
    "stack": lambda: StackDataset(_table(), Subset(_table(60), range(30, 53))),
    "named": lambda: StackDataset(one=_table(), two=_table(seed=1)),
    "concat of stacks": lambda: ConcatDataset(
        [StackDataset(one=_table(9), two=_table(9)), StackDataset(one=_table(8), two=_table(8))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_batch_is_the_same_and_no_number_is_drawn(nest: str, shuffle: bool) -> None:
    _assert_same(lambda: _loader(NESTS[nest](), shuffle=shuffle))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"batch_size": 100},
        {"drop_last": True, "shuffle": True},
        {"generator": 5, "shuffle": True},
        {"sampler": [3, 3, 1, 22]},
        {"sampler": torch.tensor([3, 3, 1, 22, 0])},
        {"sampler": np.array([3, 3, 1, 22, 0])},
        {"batch_size": 1, "batch_sampler": [[1, 2], [5], [4, 4, 4, 0]]},
    ],
    ids=str,
)
def test_whatever_the_sampler(options: dict[str, Any]) -> None:
    def make() -> Any:
        own = dict(options)
        if "generator" in own:
            own["generator"] = torch.Generator().manual_seed(own["generator"])
        return _loader(**own)

    _assert_same(make)


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(1, 9),
    batch_size=st.integers(1, 5),
    turned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_same_bytes_for_any_shape(
    shapes: list[list[int]], dtype: Any, count: int, batch_size: int, turned: bool, seed: int
) -> None:
    def tensor(shape: list[int]) -> torch.Tensor:
        numbers = torch.Generator().manual_seed(seed)
        made = torch.randint(0, 256, (count, *shape, 16), dtype=torch.uint8, generator=numbers)
        made = (made % 2).to(torch.bool) if dtype is torch.bool else made.view(dtype)  # NaNs too
        made = made[..., 0]
        return made.transpose(0, -1).contiguous().transpose(0, -1) if turned else made.contiguous()

    loader = _loader(TensorDataset(*map(tensor, shapes)), batch_size=batch_size, shuffle=True)
    expected, _ = loaded.epochs(boost, lambda: loader, boosted=False)
    try:
        found, told = loaded.epochs(boost, lambda: loader, boosted=True)
    except Declined as reason:
        assert turned, reason
        assert max(map(len, shapes)) >= 3, reason
        return
    assert found == expected
    assert told is not None
    assert told[0] == (count > batch_size), told


@settings(max_examples=40, deadline=None)
@given(switches=st.lists(st.booleans(), min_size=6, max_size=6), early=st.booleans())
def test_switched_on_and_off_in_the_middle_of_an_epoch(switches: list[bool], early: bool) -> None:
    torch.manual_seed(1)
    expected = [seen(batch) for batch in _loader(shuffle=True)]
    torch.manual_seed(1)
    loader, job = _loader(shuffle=True), Job()
    applied = boost.apply(job, loader, {}) if early else None
    found = []
    batches = start(job, loader)
    for on in switches:
        if on and applied is None:
            applied = boost.apply(job, loader, {})
        elif not on and applied is not None:
            applied.undo()
            applied = None
        (iterator,) = job.iterators(loader)
        assert (type(iterator._dataset_fetcher) is boost.Fetcher) == on
        found.append(seen(next(batches)))
    assert list(batches) == []
    assert found == expected


def test_undo_restores_iterators_under_way_and_those_to_come() -> None:
    loader = _loader()
    before = dict(vars(loader))
    job, applied = _apply(loader)
    batches = [start(job, loader)]
    next(batches[0])
    applied.undo()
    batches.append(start(job, loader))
    for iterator in job.iterators(loader):
        fetcher = iterator._dataset_fetcher
        assert type(fetcher) is _MapDatasetFetcher
        assert vars(fetcher).keys() == vars(iter(loader)._dataset_fetcher).keys()
    assert vars(loader) == before


def test_the_fetcher_shows_what_the_plain_one_holds() -> None:
    loader = _loader()
    job, _ = _apply(loader)
    batches = start(job, loader)
    (iterator,) = job.iterators(loader)
    assert iterator._dataset_fetcher.dataset is loader.dataset
    assert iterator._dataset_fetcher.auto_collation
    assert len(list(batches)) == len(loader)


def test_a_batch_owns_its_memory() -> None:
    table = _table()
    rows = table.tensors[0].clone()
    job, _ = _apply(loader := _loader(table))
    for features, _label in start(job, loader):
        features.fill_(7)
    assert torch.equal(table.tensors[0], rows)


def test_changes_of_the_dataset_are_seen_at_once() -> None:
    table = _table()
    job, applied = _apply(loader := _loader(table, batch_size=2))
    batches = start(job, loader)
    next(batches)
    table.tensors[0][2] = 7
    assert next(batches)[0][0].tolist() == [7.0] * 5
    table.tensors = (torch.zeros(23, 5, requires_grad=True), table.tensors[1])
    assert next(batches)[0].requires_grad
    assert applied.engaged() == (False, "a tensor of the dataset requires gradients")


def test_a_difference_in_the_first_batch_keeps_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    right = batch_reads.together

    def wrong(*args: Any) -> Any:
        batch = right(*args)
        batch[0][0, 0] = -0.0
        return batch

    monkeypatch.setattr(batch_reads, "together", wrong)
    table = TensorDataset(torch.zeros(8, 2))  # 0.0 and -0.0 are equal numbers of different bits
    job, applied = _apply(loader := _loader(table))
    assert [seen(batch) for batch in start(job, loader)] == [seen(batch) for batch in loader]
    assert applied.engaged() == (False, "the first batch came out different")
    (iterator,) = [*job.iterators(loader)] or [iter(loader)]
    assert type(iterator._dataset_fetcher) is _MapDatasetFetcher


@pytest.mark.parametrize("bad", [23, -24, 1.5, "one"])
def test_errors_are_those_of_pytorch(bad: Any) -> None:
    def run(boosted: bool) -> tuple[str, Any]:
        loader = _loader(batch_sampler=[[0, 1], [2, bad]], batch_size=1)
        job = Job()
        if boosted:
            boost.apply(job, loader, {})
        batches = start(job, loader)
        next(batches)
        with pytest.raises((IndexError, TypeError)) as caught:
            next(batches)
        return str(caught.value), caught.value.__context__

    assert run(boosted=True) == run(boosted=False)


PARTS = [TensorDataset(torch.ones(3, 2)), TensorDataset(torch.ones(3, 2, dtype=torch.int64))]


@pytest.mark.parametrize(
    ("dataset", "order", "reason"),
    [
        (_table(), [[0, 1], [-1, -23], [2]], "index out of range in self"),
        (ConcatDataset(PARTS), [[0, 1], [1, 4], [2, 5]],
         "the parts of the dataset differ in type, shape or device"),
    ],
)  # fmt: skip
def test_what_it_cannot_read_goes_pytorchs_way(dataset: Any, order: Any, reason: str) -> None:
    job, applied = _apply(loader := _loader(dataset, batch_sampler=order, batch_size=1))
    assert [seen(b) for b in start(job, loader)] == [seen(b) for b in loader]
    assert applied.engaged() == (False, reason)


def test_an_empty_batch_goes_pytorchs_way() -> None:
    job, _ = _apply(loader := _loader(batch_sampler=[[]], batch_size=1))
    with pytest.raises(IndexError):
        next(start(job, loader))


class Table(Dataset[Any]):
    """A dataset of the program's own that looks up rows."""

    def __init__(self) -> None:
        self.x, self.names = np.random.rand(23, 3), [f"row {i}" for i in range(23)]

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.x[index], dtype=torch.float32), self.names[index]


def test_a_dataset_of_the_programs_own() -> None:
    table = Table()
    _assert_same(lambda: _loader(table, shuffle=True))
    assert loader_facts(_loader(table)).read_singly == ""
    assert loader_facts(_loader(Squares())).read_singly
    facts = loader_facts(_loader(table, num_workers=2))
    assert facts.read_singly == "the loader has 2 workers, which fetch the batches"


class Mine(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * part for part in super().__getitem__(index))


class MySubset(Subset[Any]):
    def __getitems__(self, indices: list[int]) -> Any:
        return super().__getitems__(indices[::-1])


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return index**2


def _batched() -> TensorDataset:
    table = _table()
    table.__getitems__ = lambda indices: [table[0] for _ in indices]  # type: ignore[attr-defined]
    return table


SPARSE = torch.ones(4, 3).to_sparse()


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (_loader(num_workers=1), "the loader has 1 workers, which fetch the batches"),
        (_loader(batch_size=None), "batch_size=None: the loader makes no batches"),
        (_loader(collate_fn=list), "the program has a collate function of its own"),
        (_loader(Squares()), "__getitem__ does more than look up rows: `index ** 2`"),
        (_loader(Mine(torch.ones(3))), "Mine.__getitem__ uses names from around it"),
        (_loader(MySubset(_table(), [1, 2])), "the dataset loads whole batches by itself"),
        (_loader(ConcatDataset([_table(), Squares()])),
         "__getitem__ does more than look up rows: `index ** 2`"),
        (_loader(list(range(9))), "the samples come from list, whose source is not Python"),
        (_loader(_batched()), "the dataset was given a __getitems__ of its own"),
        (_loader(Subset(_batched(), [0, 1])), "the dataset was given a __getitems__ of its own"),
        (_loader(TensorDataset(SPARSE)),
         "a tensor of the dataset is sparse, quantized or without data"),
        (_loader(TensorDataset(torch.ones(4, device="meta"))),
         "a tensor of the dataset is sparse, quantized or without data"),
        (_loader(TensorDataset(torch.ones(4, requires_grad=True))),
         "a tensor of the dataset requires gradients"),
        (_loader(TensorDataset(torch.nn.Parameter(torch.ones(4)))),
         "the dataset holds Parameter, not plain tensors"),
        (_loader(TensorDataset(torch.ones(4, dtype=torch.complex64).conj())),
         "a tensor of the dataset is a view that is computed when it is read"),
        (_loader(TensorDataset(torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last))),
         "a tensor of the dataset is not contiguous"),
    ],
)  # fmt: skip
def test_declines(loader: Any, reason: str) -> None:
    with pytest.raises(Declined) as declined:
        _apply(loader)
    assert str(declined.value) == reason


@pytest.mark.parametrize("key", [torch.Tensor, tuple])
def test_declines_where_the_default_collate_was_changed(
    key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, key, lambda batch, **_: batch)
    with pytest.raises(Declined, match="added to the default collate function"):
        _apply(_loader())


def test_a_collate_function_set_later_is_used() -> None:
    job, applied = _apply(loader := _loader())
    loader.collate_fn = len
    assert list(start(job, loader)) == [4] * 5 + [3]
    assert applied.engaged() == (False, "the loader returned no batch after the first of an epoch")


def test_iterators_of_other_kinds_are_left_alone() -> None:
    job, applied = _apply(loader := _loader())

    class Other:
        """Where the program gave its loader workers, or a way of its own."""

        @property
        def _dataset_fetcher(self) -> Any:
            raise RuntimeError("not to be touched")

    other = Other()
    job.iterating(loader, other)
    assert len(list(start(job, loader))) == 6
    assert applied.engaged() == (True, "5 batches with one index operation for each tensor")
    applied.undo()
    assert other is not None


def test_trouble_in_taking_over_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    job, applied = _apply(loader := _loader())
    monkeypatch.setattr(boost, "Fetcher", None)
    assert [seen(b) for b in start(job, loader)] == [seen(b) for b in _loader()]
    assert applied.engaged() == (False, "TypeError: 'NoneType' object is not callable")


def test_holds_neither_loader_nor_dataset() -> None:
    table = _table()
    job, applied = _apply(loader := _loader(table))
    assert len(list(start(job, loader))) == 6
    gone = weakref.ref(table), weakref.ref(loader)
    gc.disable()  # not left to the collector
    try:
        del table, loader
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
    assert applied.engaged()[0]  # type: ignore[index]
    applied.undo()


def test_by_hand_gives_the_same_batches() -> None:
    facts = JobFacts("2.13.0", "3.11", "linux", "cpu", loaders=(LOADER,))
    names: dict[str, Any] = {"dataset": _table()}
    exec(boost.by_hand(facts, {}).replace("RandomSampler(dataset)", "SequentialSampler(dataset)")
         .replace("RandomSampler\n", "SequentialSampler\n"), names)  # fmt: skip
    by_hand = [seen(list(batch)) for batch in names["loader"]]
    assert by_hand == [seen(batch) for batch in _loader()]
