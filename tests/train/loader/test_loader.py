"""loader(): batches in order, on the device, resumed at the exact sample."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import flatout
from flatout_train.errors import UsageError
from flatout_train.loader import loader as loading


@pytest.fixture(scope="module", autouse=True)
def workers_end_soon() -> Iterator[None]:
    """torch waits five seconds for the end of a worker whose data set has raised an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


class Augmented(Dataset):
    """Samples with random numbers from all generators, one of its own among them."""

    def __init__(self, samples: int = 30) -> None:
        self.samples = samples
        self.own = np.random.default_rng(3)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = random.random() + np.random.rand() + self.own.random()
        return torch.rand(2) + noise, index


class Stream(IterableDataset):
    """Shares itself out among workers, as torch asks of iterable data sets."""

    def __init__(self, samples: int = 23) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.samples, step):
            yield torch.rand(1), index


class StatefulStream(Stream):
    """Keeps its own position, as Hugging Face's do, and counts what it reads."""

    def __init__(self, samples: int = 23) -> None:
        super().__init__(samples)
        self.position = self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < self.samples:
            self.position += 1
            self.reads += 1
            yield torch.rand(1), self.position - 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def flat(batches: list[Any]) -> list[Any]:
    """Nested lists of numbers, to be compared bit for bit."""
    return [[part.tolist() for part in batch] for batch in batches]


def passes(loader: Any, count: int) -> list[Any]:
    return flat([batch for _ in range(count) for batch in loader])


def test_batches_are_torchs_own_without_shuffling() -> None:
    class Plain(Augmented):
        def __getitem__(self, index: int) -> Any:
            return {"x": torch.full((2,), index), "name": str(index), "y": float(index)}

    theirs = list(DataLoader(Plain(), 8))
    ours = list(flatout.loader(Plain(), 8, workers=0))
    assert len(ours) == len(theirs) == len(flatout.loader(Plain(), 8))
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert one["name"] == other["name"]
        assert torch.equal(one["x"], other["x"])
        assert one["y"].dtype == other["y"].dtype


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_a_resumed_loader_gives_the_very_next_batch_with_any_number_of_workers(
    before: int, after: int
) -> None:
    def make(workers: int) -> loading.Loader:
        return flatout.loader(Augmented(), 4, shuffle=True, workers=workers)

    whole = passes(make(0), 3)
    assert whole[:8] != whole[8:16], "each epoch is another one"
    first = make(before)
    batches = iter(first)
    handed = flat([next(batches) for _ in range(3)])
    again = make(after)
    again.load_state_dict(first.state_dict())
    assert again.epoch == 0
    assert handed + passes(again, 3) == whole


def test_after_an_epochs_last_batch_the_state_is_the_next_epochs_start() -> None:
    loader = flatout.loader(torch.arange(10), 4)
    states = [loader.state_dict() for _ in loader]
    assert [(state["epoch"], state["mark"] is None) for state in states] == [
        (0, False),
        (0, False),
        (1, True),
    ]
    assert loader.epoch == 1
    assert passes_of_tensor(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert loader.epoch == 2


def passes_of_tensor(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_a_pass_that_was_broken_off_is_followed_by_the_next_epoch() -> None:
    loader = flatout.loader(torch.arange(40), 4, shuffle=True)
    epochs = [passes_of_tensor(flatout_at(epoch)) for epoch in range(3)]
    next(iter(loader))
    assert passes_of_tensor(loader) == epochs[1]
    assert passes_of_tensor(loader) == epochs[2]
    iter(loader)  # nothing was handed out
    assert loader.epoch == 3


def flatout_at(epoch: int) -> loading.Loader:
    loader = flatout.loader(torch.arange(40), 4, shuffle=True)
    loader.set_epoch(epoch)
    return loader


def test_set_epoch_keeps_a_loaded_position_in_that_epoch_and_drops_another() -> None:
    loader = flatout_at(5)
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(3)]
    state = loader.state_dict()
    again = flatout_at(0)
    again.load_state_dict(state)
    again.set_epoch(5)
    assert first + passes_of_tensor(again) == passes_of_tensor(flatout_at(5))
    again.load_state_dict(state)
    again.set_epoch(6)
    assert passes_of_tensor(again) == passes_of_tensor(flatout_at(6))


def test_two_passes_at_once_are_refused() -> None:
    loader = flatout.loader(torch.arange(40), 4)
    older = iter(loader)
    next(older)
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="one pass at a time"):
        next(older)


def test_the_state_of_another_order_is_refused() -> None:
    state = flatout.loader(torch.arange(40), 4, shuffle=True).state_dict()
    for other, name in [
        (flatout.loader(torch.arange(41), 4, shuffle=True), "samples was 40, now it is 41"),
        (flatout.loader(torch.arange(40), 4), "shuffle was True"),
        (flatout.loader(torch.arange(40), 4, shuffle=True, seed=1), "seed was 0"),
    ]:
        with pytest.raises(UsageError, match=name):
            other.load_state_dict(state)
    with pytest.raises(UsageError, match="version 3"):
        flatout.loader(torch.arange(40), 4).load_state_dict({**state, "version": 3})


def test_the_state_loads_with_weights_only(tmp_path: Path) -> None:
    loader = flatout.loader(StatefulStream(), 4, workers=0)
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_iterable_data_set_is_resumed_by_reading_again(workers: int) -> None:
    whole = passes(flatout.loader(Stream(), 4, workers=workers), 2)
    loader = flatout.loader(Stream(), 4, workers=workers)
    batches = iter(loader)
    first = flat([next(batches) for _ in range(3)])
    again = flatout.loader(Stream(), 4, workers=workers)
    again.load_state_dict(loader.state_dict())
    assert first + passes(again, 2) == whole
    samples = [index for batch in whole[: len(whole) // 2] for index in batch[1]]
    assert sorted(samples) == list(range(23))


def test_an_iterable_data_set_with_a_state_is_resumed_without_reading_again() -> None:
    whole = passes(flatout.loader(StatefulStream(), 4), 2)
    loader = flatout.loader(StatefulStream(), 4)
    assert loader.notes["workers"] == "0: the data set keeps its own position"
    batches = iter(loader)
    first = flat([next(batches) for _ in range(3)])
    dataset = StatefulStream()
    again = flatout.loader(dataset, 4)
    again.load_state_dict(loader.state_dict())
    assert first + passes(again, 1) == whole[:6]
    assert dataset.reads == 23 - 12
    assert passes(again, 1) == whole[6:]


class OwnStream(Stream):
    """Draws from generators of its own, and keeps no state."""

    def __init__(self) -> None:
        super().__init__(12)
        self.order, self.noise = random.Random(3), np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        for index in self.order.sample(range(self.samples), self.samples):
            yield torch.tensor(self.noise.random()), index


@pytest.mark.parametrize("workers", [0, 1])
def test_generators_of_an_iterable_data_set_go_on_in_a_later_epoch(workers: int) -> None:
    loader = flatout.loader(OwnStream(), 4, workers=workers)
    whole = passes(loader, 2)
    assert whole[:3] != whole[3:]
    loader = flatout.loader(OwnStream(), 4, workers=workers)
    first, batches = passes(loader, 1), iter(loader)
    first += flat([next(batches)])
    again = flatout.loader(OwnStream(), 4, workers=workers)
    again.load_state_dict(loader.state_dict())
    assert first + passes(again, 1) == whole


def test_generators_of_an_iterable_data_set_with_a_state_are_its_own_affair() -> None:
    class Shuffled(StatefulStream):
        def __init__(self) -> None:
            super().__init__(12)
            self.own = random.Random(3)

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position, "begun_with": self.begun_with}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.position = state["position"]
            self.own.setstate(state["begun_with"])

        def __iter__(self) -> Iterator[Any]:
            self.begun_with = self.own.getstate()
            order = self.own.sample(range(self.samples), self.samples)
            while self.position < self.samples:
                self.position += 1
                yield torch.tensor(0), order[self.position - 1]
            self.position = 0

    whole = passes(flatout.loader(Shuffled(), 4), 2)
    loader = flatout.loader(Shuffled(), 4)
    first, batches = passes(loader, 1), iter(loader)
    first += flat([next(batches)])
    again = flatout.loader(Shuffled(), 4)
    again.load_state_dict(loader.state_dict())
    assert first + passes(again, 1) == whole


def test_what_can_only_be_iterated_is_a_stream() -> None:
    class Plain:
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    loader = flatout.loader(Plain(), 2)
    assert [passes_of_tensor(loader) for _ in range(2)] == [[[0, 1], [2, 3], [4]]] * 2


def test_an_iterable_without_length_says_so_and_works() -> None:
    loader = flatout.loader(Stream(), 4, workers=0, drop_last=True)
    with pytest.raises(TypeError, match="Stream has no length"):
        len(loader)
    assert len(list(loader)) == 5
    with pytest.raises(UsageError, match="saved with 2 workers, now there are 1"):
        other = flatout.loader(Stream(), 4, workers=2)
        next(iter(other))
        loader.load_state_dict(other.state_dict())
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": []}, "list is empty"),
        ({"dataset": torch.empty(0, 3)}, "Tensor is empty"),
        ({"dataset": (torch.empty(0, 3), torch.empty(0))}, "tuple is empty"),
        ({"sampler": []}, "list is empty"),
        ({"dataset": iter([1])}, "can be read only once"),
        ({"dataset": DataLoader([1])}, "pass the data set itself"),
        ({"dataset": 3}, "is not a data set: add __getitem__"),
        ({"dataset": (torch.ones(2), torch.ones(3))}, r"different numbers of samples \(\[2, 3\]\)"),
        ({"batch_size": 0}, "batch_size is 0: pass a whole number of at least 1"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": "many"}, "workers is 'many'"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"device": "xpu"}, "device='xpu' cannot be used"),
        ({"sampler": [0], "shuffle": True}, "sampler and shuffle both choose the order"),
        ({"dataset": Stream(), "shuffle": True}, "shuffle needs a data set with an index"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], message: str) -> None:
    given = {"dataset": [1, 2, 3, 4], "batch_size": 2, **arguments}
    with pytest.raises(UsageError, match=message):
        flatout.loader(given.pop("dataset"), given.pop("batch_size"), **given)


def test_drop_last_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="4 samples are fewer than 5"):
        list(flatout.loader([1, 2, 3, 4], 5, drop_last=True))


class Failing(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise FileNotFoundError("image 13 is gone")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_data_set_passes_with_the_index(workers: int) -> None:
    loader = flatout.loader(Failing(), 4, workers=workers)
    batches = iter(loader)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(FileNotFoundError, match="image 13 is gone") as raised:
        next(batches)
    told = str(raised.value) + "".join(getattr(raised.value, "__notes__", ()))
    assert "raised by dataset[13]" in told
    assert loader.state_dict()["mark"]["position"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_the_end_of_an_iterator_in_the_data_set_is_not_the_end_of_the_epoch(workers: int) -> None:
    class Exhausted(Augmented):
        def __getitem__(self, index: int) -> Any:
            return index if index < 6 else next(iter(()))

    batches = iter(flatout.loader(Exhausted(), 4, workers=workers))
    next(batches)
    with pytest.raises(RuntimeError, match=r"samples \[4, 5, 6, 7\] raised StopIteration"):
        next(batches)


def test_workers_see_what_the_program_changes_between_passes() -> None:
    class Scaled(Augmented):
        scale = 1

        def __getitem__(self, index: int) -> Any:
            return self.scale * index

    dataset = Scaled(6)
    loader = flatout.loader(dataset, 3, workers=1)
    assert passes_of_tensor(loader) == [[0, 1, 2], [3, 4, 5]]
    workers = loader._source._loader
    assert passes_of_tensor(loader) == [[0, 1, 2], [3, 4, 5]]
    assert loader._source._loader is workers
    dataset.scale = 2
    assert passes_of_tensor(loader) == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("dataset", [Augmented(), Stream()])
def test_closing_stops_the_workers_of_a_pass_that_somebody_still_holds(dataset: Any) -> None:
    before = {*multiprocessing.active_children()}
    loader = flatout.loader(dataset, 4, workers=2)
    batches = iter(loader)
    next(batches)
    assert len(multiprocessing.active_children()) == len(before) + 2
    loader.close()
    assert {*multiprocessing.active_children()} == before
    with pytest.raises(UsageError, match="this pass ended"):
        next(batches)
    assert len(list(loader)) > 2
    loader.close()


@pytest.mark.gpu
def test_on_cuda_batches_are_those_of_the_cpu_and_come_from_pinned_memory() -> None:
    dataset = TensorDataset(torch.arange(4000.0).view(1000, 4), torch.arange(1000))
    for data in (dataset, Augmented(100)):
        there = flatout.loader(data, 16, shuffle=True)
        here = flatout.loader(data, 16, shuffle=True, device="cpu", workers=0)
        for one, other in zip(there, here, strict=True):
            assert {part.device.type for part in one} == {"cuda"}
            for part, same in zip(one, other, strict=True):
                assert torch.equal(part.cpu(), same)
