from __future__ import annotations

import collections
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import loaded
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import sample_cache as boost
from flatout_agent.job import Job
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.run import LiveWatch
from flatout_agent.speedups.samples import cached_reads, kept_samples, samples
from flatout_agent.tell.recorder import Recorder
from flatout_agent.wire import BoostOrder, Decided, LiveOrders
from loaded import seen, start

Pair = collections.namedtuple("Pair", "x y")
OWN = random.Random(5)
SERVED = " samples from memory"


class Photos(Dataset[Any]):
    """Decodes `index` with `decode`, and counts how often, where nobody sees it."""

    def __init__(self, count: int = 40, decode: Callable[[int], Any] | None = None) -> None:
        self.count = count
        self.decode = decode or _photo
        self.scale = 1.0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(f"no photo {index}")
        READ.append(index)
        sample = self.decode(index)
        return sample if self.scale == 1.0 else sample * self.scale


def _slow_photo(index: int) -> Any:
    CLOCK[0] += 0.001
    return _photo(index)


CLOCK = [0.0]
READ: list[int] = []
FILES: dict[int, float] = {}


@pytest.fixture(autouse=True)
def nothing_read_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the machine's memory is not looked up in dozens of files at each switch."""
    READ.clear()
    kept_samples._caches.clear()
    for module in (boost, kept_samples):
        monkeypatch.setattr(module, "spare_memory", lambda: 1 << 30)


def _kept(loader: Any) -> kept_samples.KeptSamples:
    return kept_samples._caches[loader]


def _no_samples() -> bool:
    return all(not kept.samples for kept in kept_samples._caches.values())


def _photo(index: int) -> Any:
    return torch.arange(6.0).reshape(2, 3) + index, index % 3


def _loader(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(Photos() if dataset is None else dataset, **{"batch_size": 4, **options})


def _apply(loader: Any) -> tuple[Job, Applied]:
    job = Job()
    return job, boost.apply(job, loader, {})


def _told(make: Callable[[], Any]) -> Any:
    return loaded.told(boost, make)


DECODED: dict[str, Callable[[int], Any]] = {
    "tuple": _photo,
    "tensor": lambda index: torch.full((2, 2), index / 7),
    "array": lambda index: np.arange(4, dtype=np.float32) * index,
    "numbers": lambda index: (index, index / 3, float("nan"), -0.0),
    "numpy numbers": lambda index: (np.float32(index), np.int64(index)),
    "texts": lambda index: {"text": f"line {index}", "label": index},
    "named tuple": lambda index: Pair(torch.ones(2) * index, [torch.tensor(index)]),
    "turned": lambda index: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1) + index,
    "crop": lambda index: (torch.arange(48.0).reshape(3, 4, 4) + index)[:, 1:3, 1:3],
    "cropped array": lambda index: (np.arange(16.0).reshape(4, 4) + index)[1:3, ::2],
    "grey": lambda index: torch.full((1, 2, 2), float(index)).expand(3, 2, 2),
}


@pytest.mark.parametrize("kind", DECODED)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_is_the_same_as_without(kind: str, shuffle: bool) -> None:
    told = _told(lambda: _loader(Photos(40, DECODED[kind]), shuffle=shuffle))
    assert told[0], told
    assert told[1].startswith("80" + SERVED)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _loader(batch_size=1),
        lambda: _loader(batch_size=64),
        lambda: _loader(batch_size=None),
        lambda: _loader(drop_last=True, batch_size=7),
        lambda: _loader(collate_fn=list),
        lambda: _loader(collate_fn=tuple, shuffle=True),
        lambda: _loader(sampler=np.array([3, 3, 1, 22, 0, 3])),
        lambda: _loader(batch_size=1, batch_sampler=[[1, 2], [5], [4, 4, 1, 0]]),
        lambda: _loader(random_split(Photos(60), [40, 20])[0], shuffle=True),
        lambda: _loader(ConcatDataset([Photos(15), Photos(25)]), shuffle=True),
        lambda: _loader(StackDataset(one=Photos(), two=TensorDataset(torch.arange(40)))),
        lambda: _loader(Subset(Subset(Photos(60), range(1, 60)), np.arange(40))),  # type: ignore[arg-type]
    ],
)
def test_whatever_the_loader_and_whatever_is_around_the_dataset(make: Callable[[], Any]) -> None:
    told = _told(make)
    assert told[0], told


def test_reads_each_sample_once_and_some_twice() -> None:
    job, applied = _apply(loader := _loader(Photos(640), batch_size=32, shuffle=True))
    list(start(job, loader))
    assert set(READ) == set(range(640))
    checks = len(READ) - 640
    assert 8 <= checks <= 17  # one in a batch, of which there are 20
    READ.clear()
    for _ in range(3):
        list(start(job, loader))
    first = {640 * epoch + place for epoch in range(3) for place in range(cached_reads.CHECKS)}
    later = set(range(cached_reads.CHECK_EVERY - 1, 3 * 640, cached_reads.CHECK_EVERY))
    assert len(READ) == len(first | later)
    assert applied.engaged() == (True, f"{3 * 640}{SERVED} (0.3 MB)")


SWITCHES = ["on", "off", "on", "off", "step", "step", "other", "change", "forget"]


@pytest.mark.slow
@given(
    switches=st.lists(st.sampled_from(SWITCHES), max_size=40),
    batch_size=st.integers(1, 5),
    copies=st.booleans(),
)
def test_switched_on_and_off_at_any_step(
    switches: list[str], batch_size: int, copies: bool
) -> None:
    """Epochs under way and nested ones: no sample is lost, repeated, changed or out of date."""

    def run(boosted: bool) -> list[Any]:
        torch.manual_seed(1)
        options: dict[str, Any] = {"collate_fn": list} if copies else {}
        dataset = Photos(9, DECODED["tensor"])
        loader = _loader(dataset, batch_size=batch_size, shuffle=True, **options)
        job, applied, shown = Job(), None, []
        batches = start(job, loader)
        for switch in [*switches, *["step"] * 12]:
            if switch == "other":
                shown.append([seen(batch) for batch in start(job, loader)])
            elif switch == "on" and boosted and applied is None:
                applied = boost.apply(job, loader, {})
            elif switch == "off" and applied is not None:
                applied.undo()
                applied = None
            elif switch == "change":
                dataset.scale += 0.5
            elif switch == "forget" and boosted:
                boost.forget(job)
            elif switch == "step":
                batch = next(batches, None)
                if batch is None:
                    batches = start(job, loader)
                shown.append(seen(batch))
        return [*shown, torch.rand(1).tolist()]

    assert run(boosted=True) == run(boosted=False)


def _reads(job: Job, loader: Any) -> int:
    """How many samples an epoch, the same as without, reads."""
    expected = [seen(batch) for batch in _loader(loader.dataset)]
    READ.clear()
    assert [seen(batch) for batch in start(job, loader)] == expected
    return len(READ)


def test_the_samples_are_there_when_it_is_switched_on_again() -> None:
    job, applied = _apply(loader := _loader())
    list(start(job, loader))
    for _ in range(3):
        applied.undo()
        assert _reads(job, loader) == 40
        applied = boost.apply(job, loader, {})
        assert _reads(job, loader) <= 4, "all from memory, some of them compared"
    assert applied.engaged() == (True, f"120{SERVED} (0.0 MB)")


def test_what_is_read_while_it_is_off_is_not_known() -> None:
    job, applied = _apply(loader := _loader())
    batches = start(job, loader)
    for _ in range(3):
        next(batches)
    applied.undo()
    (iterator,) = job.iterators(loader)
    assert type(iterator._dataset_fetcher) is _MapDatasetFetcher
    for _ in range(4):
        next(batches)
    boost.apply(job, loader, {})
    list(batches)
    assert sorted(_kept(loader).samples) == [*range(12), *range(28, 40)]
    _reads(job, loader)
    assert set(READ) >= set(range(12, 28))
    assert _reads(job, loader) <= 4


def test_files_that_are_rewritten_while_it_is_off() -> None:
    FILES.update({index: float(index) for index in range(40)})
    job, applied = _apply(loader := _loader(Photos(40, lambda index: FILES[index])))
    list(start(job, loader))
    batches = start(job, loader)
    next(batches)
    applied.undo()
    FILES.update({index: index + 0.5 for index in range(40)})
    applied = boost.apply(job, loader, {})
    assert next(batches).tolist() == [4.5, 5.5, 6.5, 7.5]
    assert applied.engaged() == (False, "sample 4 came out different when it was read again")


def test_what_it_once_refused_it_does_not_take_up_again() -> None:
    job, applied = _apply(loader := _loader(Photos(40, lambda index: random.random())))
    list(start(job, loader))
    applied.undo()
    again = boost.apply(job, loader, {})
    READ.clear()
    list(start(job, loader))
    assert len(READ) == 40
    assert again.engaged() == (False, cached_reads.DRAWS)


@pytest.mark.parametrize("off_first", [True, False])
def test_for_good(off_first: bool) -> None:
    """Forgotten, the samples are gone as soon as it is off, and it begins anew."""
    job, applied = _apply(loader := _loader())
    list(start(job, loader))
    for action in [applied.undo, lambda: boost.forget(job)][:: 1 if off_first else -1]:
        action()
    assert (_kept(loader).samples, _kept(loader).bytes) == ({}, 0)
    boost.apply(job, loader, {})
    assert _reads(job, loader) >= 40
    assert _reads(job, loader) <= 4


def test_another_program_finds_nothing() -> None:
    job, applied = _apply(loader := _loader())
    list(start(job, loader))
    applied.undo()
    other, _ = _apply(loader)
    assert _reads(other, loader) >= 40


class Tuned:
    """A loader, and a booster that switches on and off as a tuning does."""

    def __init__(self, recorder: Recorder, *loaders: Any) -> None:
        self.job = Job()
        for loader in loaders:
            self.job.loaders.append(loader)
        self.booster = Booster(self.job, (), recorder)

    def on(self) -> None:
        assert self.booster.on(BoostOrder("sample-cache")) is None

    def off(self) -> None:
        self.booster.off("sample-cache")

    def forget(self) -> None:
        self.booster.forget("sample-cache")

    def left(self) -> int:
        return self.booster.steps_to_ready("sample-cache")


def test_the_booster_forgets_what_it_is_told_to(recorder: Recorder) -> None:
    tuned = Tuned(recorder, loader := _loader())
    tuned.on()
    list(start(tuned.job, loader))
    tuned.off()
    assert len(_kept(loader).samples) == 40
    tuned.forget()
    assert _no_samples()
    tuned.on()
    list(start(tuned.job, loader))
    tuned.booster.undo()
    assert _no_samples()
    tuned.booster.forget("gc-pause")  # has nothing to forget


def test_the_tuning_forgets_what_it_does_not_keep(recorder: Recorder) -> None:
    tuned = Tuned(recorder, loader := _loader())
    watch = LiveWatch(tuned.job, tuned.booster, recorder, LiveOrders(allowed=("sample-cache",)))
    item = Candidate("sample-cache", {}, boost.BOOST, 1.0)

    def kept_through(then: Callable[[], None]) -> bool:
        watch.switch([item.order])
        list(start(tuned.job, loader))
        then()
        watch.switch([])
        return not _no_samples()

    try:
        assert kept_through(lambda: watch.tell(Decided("gc-pause", "same", "")))
        assert not kept_through(lambda: watch.tell(Decided("sample-cache", "same", "")))
        watch.tuning.state.kept.append(item)
        assert kept_through(lambda: watch.tell(Decided("sample-cache", "kept", "")))
        watch.tuning.state.kept.clear()
        assert watch.steps_to_ready("sample-cache") == 0
        watch._settled()  # with no word on it: a fault of our own ended the tuning
        assert _no_samples()
    finally:
        watch._unwatch_saving()


def test_the_steps_until_it_can_show_its_gain(recorder: Recorder) -> None:
    tuned = Tuned(recorder, loader := _loader(shuffle=True), validation := _loader(Photos(400)))
    batches = start(tuned.job, loader)
    tuned.on()
    left = [tuned.left()]
    for batch, _ in enumerate(batches):
        left.append(tuned.left())
        if batch == 4:  # half of them
            tuned.off()
            assert tuned.left() == 0
        if batch == 6:
            tuned.on()
    assert left == [10, 9, 8, 7, 6, 5, 0, 0, 4, 3, 2]
    for _ in start(tuned.job, loader):
        pass
    assert tuned.left() == 0
    next(start(tuned.job, validation))
    assert tuned.left() == 99, "of the loader that takes longest"


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": None},
        {"drop_last": True, "batch_size": 7},
        {"sampler": SubsetRandomSampler(range(10))},
        {"batch_size": 1, "batch_sampler": [[1, 2], [5], [4, 8, 9, 0]]},
    ],
    ids=["no batches", "drop last", "subset", "batch sampler"],
)
def test_a_pass_makes_it_ready(recorder: Recorder, options: dict[str, Any]) -> None:
    tuned = Tuned(recorder, loader := _loader(**options))
    batches = start(tuned.job, loader)
    tuned.on()
    assert tuned.left() >= len(loader)
    list(batches)
    assert tuned.left() == 0


def test_it_is_ready_where_nearly_all_is_known(recorder: Recorder) -> None:
    sampler = [*range(8), *[index % 8 for index in range(200)], *range(8, 40)]
    tuned = Tuned(recorder, loader := _loader(sampler=sampler))
    batches = start(tuned.job, loader)
    tuned.on()
    for _ in range(10):
        next(batches)
    assert tuned.left() == 8
    for _ in range(12):
        next(batches)
    assert tuned.left() == 0


def test_it_is_ready_once_it_has_switched_itself_off(recorder: Recorder) -> None:
    tuned = Tuned(recorder, loader := _loader(Photos(40, lambda index: random.random())))
    batches = start(tuned.job, loader)
    tuned.on()
    assert tuned.left() == 10
    next(batches)
    assert tuned.left() == 0


def test_what_the_program_does_to_a_sample_stays_in_that_batch() -> None:
    """Lists of the samples themselves go to the program."""
    job, applied = _apply(loader := _loader(collate_fn=list))
    for _ in range(3):
        for batch in start(job, loader):
            for photo, _label in batch:
                assert photo[0, 1] - photo[0, 0] == 1
                photo.zero_()
    assert applied.engaged()[0]  # type: ignore[index]


DRAWN = [
    random.random,
    lambda: np.random.rand(),
    lambda: torch.rand(1).item(),
    lambda: (random.seed(30), random.random())[1],
]


@pytest.mark.parametrize("drawn", DRAWN)
def test_a_sample_that_draws_switches_it_off(drawn: Callable[[], float]) -> None:
    def decode(index: int) -> Any:
        return drawn() if index == 30 else float(index)  # one of forty is augmented

    assert _told(lambda: _loader(Photos(40, decode))) == (False, cached_reads.DRAWS)
    assert _no_samples()


def test_what_the_second_reading_draws_is_put_back() -> None:
    """A dataset that augments what it has seen before."""

    def decode(index: int) -> Any:
        return torch.rand(1).item() if index in READ[:-1] else float(index)

    torch.manual_seed(0)
    job, applied = _apply(loader := _loader(Photos(40, decode), sampler=range(4)))
    (batch,) = start(job, loader)
    assert batch.tolist() == [0, 1, 2, 3]
    found = torch.rand(1).tolist()
    torch.manual_seed(0)
    iter(loader)  # draws the seed of its epoch
    assert torch.rand(1).tolist() == found
    assert applied.engaged() == (False, cached_reads.DRAWS)


def test_other_samples_for_the_same_index_switch_it_off() -> None:
    count = iter(range(10**6))
    job, applied = _apply(loader := _loader(Photos(40, lambda index: (index, next(count)))))
    assert next(start(job, loader))[1].tolist() == [0, 1, 2, 3]
    assert applied.engaged() == (False, "sample 0 came out different when it was read again")


def test_a_file_that_is_rewritten_is_found_before_anything_old_is_given() -> None:
    FILES.update({index: float(index) for index in range(200)})
    job, applied = _apply(loader := _loader(Photos(200, lambda index: FILES[index])))
    list(start(job, loader))
    for index in FILES:
        FILES[index] += 0.5
    found = [value for batch in start(job, loader) for value in batch.tolist()]
    assert found == list(FILES.values())
    assert applied.engaged() == (False, "sample 0 came out different when it was read again")


def test_attributes_that_the_program_sets_empty_the_cache() -> None:
    dataset = Photos(40, DECODED["tensor"])
    job, applied = _apply(loader := _loader(dataset))
    list(start(job, loader))
    batches = start(job, loader)
    next(batches)
    dataset.scale = 2.0  # in the middle of an epoch
    assert next(batches)[0, 0, 0] == pytest.approx(2 * 4 / 7)
    assert [batch[3, 0, 0].item() for batch in batches] == pytest.approx(
        [2 * index / 7 for index in range(11, 40, 4)]
    )
    assert applied.engaged()[0]  # type: ignore[index]
    for scale in (3.0, 4.0):
        dataset.scale = scale
        assert next(start(job, loader))[1, 0, 0] == pytest.approx(scale / 7)
    reason = "the dataset changes again and again (dataset.scale)"
    assert applied.engaged() == (False, reason)


def test_a_dataset_that_counts_is_never_read_twice() -> None:
    class Counts(Photos):
        calls = 0

        def __getitem__(self, index: int) -> Any:
            self.calls += 1
            return super().__getitem__(index)

    job, applied = _apply(loader := _loader(dataset := Counts()))
    for _ in range(2):
        list(start(job, loader))
    assert dataset.calls == 80
    reason = "the dataset changes again and again (dataset.calls)"
    assert applied.engaged() == (False, reason)


def test_a_dataset_may_open_its_file_when_it_is_first_read() -> None:
    class Opens(Photos):
        file: Any = None

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = {"open": True}
            return super().__getitem__(index)

    told = _told(lambda: _loader(Opens()))
    assert told[0], told


def test_errors_of_the_dataset_reach_the_program() -> None:
    job, applied = _apply(loader := _loader(sampler=[0, 1, 2, 3, 0, 77]))
    batches = start(job, loader)
    next(batches)
    with pytest.raises(IndexError, match="no photo 77") as caught:
        next(batches)
    assert caught.value.__context__ is None
    assert applied.engaged() == (False, "no sample was asked for a second time")


def test_an_error_in_reading_again_does_not() -> None:
    def decode(index: int) -> Any:
        if index in READ[:-1]:
            raise RuntimeError("only once")
        return index

    job, applied = _apply(loader := _loader(Photos(40, decode)))
    assert [batch.tolist() for batch in start(job, loader)][9] == [36, 37, 38, 39]
    assert applied.engaged() == (False, "RuntimeError: only once")


MEMORY = "the samples are in memory already"
STORED = [torch.full((2,), float(index)) for index in range(40)]
TENSORS = torch.arange(80.0).reshape(40, 2)


@pytest.mark.parametrize(
    ("decode", "options", "reason"),
    [
        (lambda index: STORED[index], {}, MEMORY),
        (lambda index: TENSORS[index], {}, MEMORY),
        (lambda index: (torch.ones(2), TENSORS[index]), {"collate_fn": list}, MEMORY),
        (lambda index: [part := torch.ones(3), part[1:]], {"collate_fn": list},
         "the parts of a sample share memory"),
        (lambda index: torch.ones(2).to_sparse(), {"collate_fn": list},
         "a sample holds a sparse, quantized or nested tensor"),
        (lambda index: torch.ones(2, device="meta"), {"collate_fn": list},
         "a sample holds a tensor on meta"),
        (lambda index: torch.ones(2, requires_grad=True), {},
         "a sample holds a tensor with gradients or attributes of its own"),
        (lambda index: torch.ones(4)[::2], {"collate_fn": list},
         "a sample is a part of a larger tensor"),
        (lambda index: np.ones(4)[::2], {"collate_fn": list},
         "a sample is a part of a larger array"),
        (lambda index: np.array([object()]), {"collate_fn": list},
         "a sample holds an array of object"),
        (lambda index: {(): 1}, {"collate_fn": list},
         "a sample is a dict whose keys are not plain"),
        (lambda index: {1, 2}, {"collate_fn": list}, "a sample holds builtins.set"),
        (lambda index: np.ma.ones(1), {"collate_fn": list},
         "a sample holds numpy.ma.MaskedArray"),
        (lambda index: index, {"batch_size": None, "sampler": [[0, 1], [2]], "lists": True},
         "the sampler gives something other than numbers"),
    ],
)  # fmt: skip
def test_samples_that_it_does_not_keep(decode: Any, options: Any, reason: str) -> None:
    class Lists(Photos):
        def __getitem__(self, index: Any) -> Any:
            return [super(Lists, self).__getitem__(item) for item in index]

    own = dict(options)
    kind = Lists if own.pop("lists", False) else Photos
    job, applied = _apply(loader := _loader(kind(40, decode), **own))
    for _ in range(2):
        assert len(list(start(job, loader))) == len(loader)
    assert applied.engaged() == (False, reason)


@pytest.mark.parametrize(("collate_s", "given_up"), [(0.1, True), (0.01, False)])
def test_it_is_given_up_where_collating_takes_the_time(
    collate_s: float, given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_reads.time, "perf_counter", lambda: CLOCK[0])

    def collate(rows: list[Any]) -> Any:
        CLOCK[0] += collate_s
        return rows

    job, applied = _apply(loader := _loader(Photos(decode=_slow_photo), collate_fn=collate))
    for _ in range(2):
        list(start(job, loader))
    engaged, reason = applied.engaged()
    assert engaged is not given_up
    assert ("of loading, the rest collates them" in reason) is given_up


def test_images_of_pil() -> None:
    image = pytest.importorskip("PIL.Image")
    shades = [image.new("RGB", (3, 2), (shade, 0, 0)) for shade in range(40)]

    def decode(index: int) -> Any:
        return shades[index].resize((2, 2)), index

    def pixels(batch: list[Any]) -> list[Any]:
        return [(type(picture), picture.tobytes(), label) for picture, label in batch]

    loader = _loader(Photos(40, decode), collate_fn=list)
    expected = [pixels(batch) for batch in loader]
    job, applied = _apply(loader)
    for _ in range(3):
        found = []
        for batch in start(job, loader):
            found.append(pixels(batch))
            batch[0][0].putpixel((0, 0), (9, 9, 9))
        assert found == expected
    assert applied.engaged()[0]  # type: ignore[index]


def test_more_than_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_samples, "spare_memory", lambda: 400_000)
    dataset = Photos(1000, lambda index: torch.zeros(250))
    job, applied = _apply(loader := _loader(dataset))
    list(start(job, loader))
    assert applied.engaged() == (False, "1000 samples would take 1 MB, 0 MB may be taken")
    assert len(READ) <= 1001


@pytest.mark.parametrize("off", [False, True])
def test_memory_that_becomes_scarce(off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job, applied = _apply(loader := _loader())
    list(start(job, loader))
    if off:
        applied.undo()
    monkeypatch.setattr(kept_samples, "spare_memory", lambda: 0)
    if off:
        applied = boost.apply(job, loader, {})
        assert _no_samples()
    assert [seen(b) for b in start(job, loader)] == [seen(b) for b in loader]
    assert applied.engaged()[1].endswith("0 MB may be taken")  # type: ignore[index]
    assert _no_samples()


def test_loaders_share_what_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_samples, "spare_memory", lambda: 400_000)
    kept = []
    for _ in range(3):
        dataset = Photos(40, lambda index: torch.zeros(250))  # some 56 kB; 100 kB may be taken
        kept.append((loader := _loader(dataset), *_apply(loader)))
        list(start(kept[-1][1], loader))
    notes = [applied.engaged() for _, _, applied in kept]
    assert notes[0] == (False, "no sample was asked for a second time")
    assert "would take" in notes[2][1]  # type: ignore[index]


def test_another_collate_function_begins_anew() -> None:
    job, applied = _apply(loader := _loader(Photos(40, DECODED["crop"])))
    for _ in range(2):
        list(start(job, loader))
    loader.collate_fn = list
    assert [seen(b) for b in start(job, loader)] == [seen(b) for b in loader]
    assert applied.engaged() == (False, "a sample is a part of a larger tensor")


def test_additions_to_the_default_collate_get_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: batch)
    job, _ = _apply(loader := _loader(Photos(40, DECODED["tensor"])))
    for _epoch in range(3):
        for number, batch in enumerate(start(job, loader)):
            assert [part[0, 0].item() for part in batch] == pytest.approx(
                [(4 * number + place) / 7 for place in range(4)]
            )
            for part in batch:
                part.zero_()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(9))


class Endless(Photos):
    def __len__(self) -> int:
        raise TypeError("endless")


class Whole(Photos):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Uses(Photos):
    def __getitem__(self, index: int) -> Any:
        return [_jitter() for _ in range(2)]


def _jitter() -> float:
    return OWN.random() if OWN.random() < 1e-6 else 0.0


def _given(name: str) -> Photos:
    dataset = Photos()
    vars(dataset)[name] = (
        torch.Generator() if name == "rng" else lambda indices: [dataset[0] for _ in indices]
    )
    return dataset


GENERATOR = "the dataset has a random generator of its own"
BATCHES = "the dataset loads whole batches: a sample may depend on the others of its batch"


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (_loader(Stream()), "an IterableDataset: its samples have no index"),
        (_loader(Endless(), sampler=[1]), "the dataset has no length (TypeError)"),
        (_loader(TensorDataset(TENSORS)), MEMORY),
        (_loader(Subset(ConcatDataset([TensorDataset(TENSORS)]), [1])), MEMORY),
        (_loader(Whole()), BATCHES),
        (_loader(Subset(Whole(), [1])), BATCHES),
        (_loader(_given("__getitems__")), BATCHES),
        (_loader(_given("rng")), GENERATOR),
        (_loader(Uses()), GENERATOR),
        (_loader(Photos(40, lambda index: OWN.random())), GENERATOR),
    ],
)  # fmt: skip
def test_declines(loader: Any, reason: str) -> None:
    with pytest.raises(Declined) as declined:
        _apply(loader)
    assert str(declined.value) == reason


def test_declines_where_memory_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "spare_memory", lambda: None)
    with pytest.raises(Declined, match="the amount of free memory is unknown"):
        _apply(_loader())


def test_trouble_in_taking_over_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    job, applied = _apply(loader := _loader())
    monkeypatch.setattr(kept_samples, "CachingFetcher", None)
    assert [seen(b) for b in start(job, loader)] == [seen(b) for b in loader]
    assert applied.engaged() == (False, "TypeError: 'NoneType' object is not callable")


def test_a_dropped_loader_takes_its_samples_along() -> None:
    dataset = Photos()
    job, applied = _apply(loader := _loader(dataset))
    for _ in range(2):
        list(start(job, loader))
    gone = weakref.ref(dataset), weakref.ref(loader)
    kept = _kept(loader)
    assert len(kept.samples) == 40
    gc.disable()  # not left to the collector
    try:
        del dataset, loader
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
    assert not kept.samples
    assert applied.engaged()[0]  # type: ignore[index]
    applied.undo()


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.lists(st.floats(width=32), max_size=3).map(lambda v: torch.tensor(v)),
        st.lists(st.integers(-9, 9), max_size=3).map(lambda v: np.array(v, dtype=np.int16)),
        st.floats(width=32).map(np.float32),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=8,
)


@given(value=VALUES, other=VALUES)
def test_copies_are_the_same_and_independent(value: Any, other: Any) -> None:
    copy = samples.copied(value, stacked=False)
    assert samples.same(value, copy)
    assert seen(copy) == seen(value)
    assert samples.size(copy) > 0
    lie = [set(samples.places(item)) - {0} for item in (value, copy)]
    assert not lie[0] & lie[1]
    assert samples.same(value, other) == (seen(value) == seen(other))
