"""early_copies: what is started early, what is taken over, and what is left alone."""

from __future__ import annotations

import collections
import copy
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flatout_agent.speedups import early_copies

META = torch.device("meta")  # a device other than the CPU that every machine has
Pair = collections.namedtuple("Pair", "x y")


class Fake:
    """Copies to the meta device; remembers in which order things happened."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.pinned = True

    def can_copy(self, tensor: Any, device: Any) -> bool:
        return self.pinned

    def start(self, tensor: Any, device: Any) -> Any:
        self.log.append(("start", int(tensor.flatten()[0])))
        return tensor.to(device)

    def finish(self, started: Any) -> Any:
        self.log.append("finish")
        return started


@pytest.fixture
def catching() -> Iterator[None]:
    undo = early_copies.catch_moves()
    yield
    undo()
    assert "to" not in vars(torch.Tensor)
    assert "cuda" not in vars(torch.Tensor)


def _prefetch(ahead: bool = False) -> tuple[early_copies.Prefetch, Fake]:
    fake = Fake()
    return early_copies.Prefetch(fake, ahead), fake


def _batches(count: int = 4) -> Iterator[torch.Tensor]:
    return (torch.full((2,), index) for index in range(count))


@pytest.mark.usefixtures("catching")
def test_the_first_batch_teaches_and_the_next_ones_are_copied_early() -> None:
    prefetch, fake = _prefetch()
    for batch in prefetch.layer(_batches()):
        fake.log.append("batch")
        assert batch.device.type == "cpu"
        assert batch.to(META).device == META
    copied = [entry for index in (1, 2, 3) for entry in (("start", index), "batch", "finish")]
    assert fake.log == ["batch", *copied]
    assert prefetch.engagement() == (True, "3 copies started early")


@pytest.mark.usefixtures("catching")
def test_one_batch_ahead() -> None:
    prefetch, fake = _prefetch(ahead=True)
    seen = []
    for batch in prefetch.layer(_batches()):
        seen.append(int(batch[0]))
        fake.log.append(("got", seen[-1]))
        batch.to("meta")
    assert seen == [0, 1, 2, 3]
    assert fake.log.index(("start", 3)) < fake.log.index(("got", 2))


@pytest.mark.usefixtures("catching")
def test_each_move_gives_a_tensor_of_its_own() -> None:
    prefetch, _ = _prefetch()
    next(prefetch.layer(_batches(1))).to(META)
    second = next(prefetch.layer(_batches(1)))
    moved = second.to(META, dtype=torch.float64), second.to(META), second.to("cpu")
    assert moved[0].dtype == torch.float64
    assert moved[0] is not moved[1]
    assert moved[2] is second
    assert prefetch.used == 1


@pytest.mark.usefixtures("catching")
def test_a_batch_changed_before_its_move_is_copied_anew() -> None:
    prefetch, fake = _prefetch()
    for batch in prefetch.layer(_batches(3)):
        batch.add_(10)
        assert batch.to(META).device == META
    assert "finish" not in fake.log
    assert prefetch.engagement()[0] is False


@pytest.mark.usefixtures("catching")
def test_places_in_nests_are_learned_one_by_one() -> None:
    def nests() -> Iterator[Any]:
        for n in range(3):
            value = torch.full((1,), n)
            yield {"pair": Pair(value, value + 10), "list": [value + 20, "text"], "n": n}

    prefetch, fake = _prefetch()
    for batch in prefetch.layer(nests()):
        assert type(batch["pair"]) is Pair
        batch["pair"].y.to(META)
    assert [entry[1] for entry in fake.log if entry != "finish"] == [11, 12]


@pytest.mark.usefixtures("catching")
def test_batch_encodings_of_transformers() -> None:
    encoding = pytest.importorskip("transformers").BatchEncoding
    prefetch, _ = _prefetch()
    for batch in prefetch.layer(encoding({"ids": t}) for t in _batches(3)):
        assert batch.to("meta")["ids"].device == META
    assert prefetch.used == 2


@pytest.mark.usefixtures("catching")
def test_copies_and_pickles_of_a_batch_are_its_own() -> None:
    prefetch, _ = _prefetch()
    next(prefetch.layer(_batches(1))).to(META)
    batch = next(prefetch.layer(_batches(1)))
    assert torch.equal(pickle.loads(pickle.dumps(batch)), batch)
    copy.deepcopy(batch).add_(1).to(META)
    assert prefetch.used == 0
    batch.to(META)
    assert prefetch.used == 1


@pytest.mark.usefixtures("catching")
def test_parameters_and_what_is_no_batch_are_left_alone() -> None:
    prefetch, fake = _prefetch()
    for weights in prefetch.layer(iter([torch.nn.Parameter(torch.ones(1)) for _ in range(3)])):
        weights.to(META)
        assert id(weights) not in early_copies._offers
    torch.ones(1).to(META)
    assert fake.log == []


@pytest.mark.usefixtures("catching")
def test_unpinned_batches_are_told() -> None:
    prefetch, fake = _prefetch()
    fake.pinned = False
    for batch in prefetch.layer(_batches()):
        batch.to(META)
    assert prefetch.engagement() == (False, "the batches are not in pinned memory")


@pytest.mark.usefixtures("catching")
def test_nothing_of_a_dropped_batch_remains() -> None:
    prefetch, _ = _prefetch()
    iterator = prefetch.layer(_batches())
    batch = next(iterator)
    key = id(batch)
    assert early_copies._offers[key].tensor() is batch
    gc.disable()
    try:
        del batch
        assert key not in early_copies._offers
    finally:
        gc.enable()


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_comes_with_the_batch_that_it_belongs_to(ahead: bool) -> None:
    class Faulty:
        count = 0

        def __iter__(self) -> Faulty:
            return self

        def __next__(self) -> torch.Tensor:
            self.count += 1
            if self.count == 2:
                raise ValueError("broken file")
            if self.count > 3:
                raise StopIteration
            return torch.full((1,), self.count)

        def __len__(self) -> int:
            return 3

    prefetch, _ = _prefetch(ahead)
    iterator: Any = prefetch.layer(Faulty())
    assert len(iterator) == 3
    assert int(next(iterator)) == 1
    with pytest.raises(ValueError, match="broken file"):
        next(iterator)
    assert int(next(iterator)) == 3
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
