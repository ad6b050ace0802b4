from __future__ import annotations

import dataclasses
import gc
import io
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import loader_workers as boost
from flatout_agent.job import Job
from flatout_agent.speedups.workers import worker_safety
from flatout_agent.wire import JobFacts, LoaderFacts

SOURCE = Path(__file__).resolve().parents[3] / "src"
LOADER = LoaderFacts("Data", False, 4, 100, 0, False, False, "fork", False)
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", cores=4, loaders=(LOADER,))
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Squares(Dataset[Any]):
    def __init__(self, count: int = 40, **held: Any) -> None:
        self.count = count
        self.factor = 1
        vars(self).update(held)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((3,), float(index * self.factor)), "pid": os.getpid()}


class Draws(Squares):
    rng: random.Random

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.tensor(self.rng.random()), "pid": os.getpid()}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(100))


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "usable_cores", lambda: 4)
    monkeypatch.setattr(torch.utils.data.DataLoader, "check_worker_number_rationality",
                        lambda self: None)  # fmt: skip


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chosen by nobody."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def _loader(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset or Squares(), **{"batch_size": 4, **options})


def _apply(loader: Any, workers: Any = 2) -> tuple[Job, Applied]:
    job = Job()
    return job, boost.apply(job, loader, {"workers": workers, "prefetch_factor": 2})


def _epoch(job: Job, loader: Any) -> list[Any]:
    return list(job.batches(loader, iter(loader)))


def _values(batches: list[Any]) -> list[Any]:
    return [batch["x"].tolist() for batch in batches]


def _three_epochs(job: Job, loader: Any) -> list[Any]:
    """Orders and contents of three epochs, and what the program itself draws in between."""
    torch.manual_seed(3)
    seen = []
    for _ in range(3):
        seen.append([_values(_epoch(job, loader)), torch.rand(2).tolist()])
    return seen


@needs_fork
@pytest.mark.parametrize("seeded", [False, True])
def test_every_epoch_is_the_same_as_without_workers(seeded: bool) -> None:
    def options() -> Any:
        return {"shuffle": True, "generator": torch.Generator().manual_seed(5) if seeded else None}

    plain = _loader(**options())
    expected = _three_epochs(Job(), plain)
    assert expected[0][0] != expected[1][0]
    loader = _loader(**options())
    job, applied = _apply(loader)
    assert _three_epochs(job, loader) == expected
    assert applied.engaged() == (True, "2 workers")


@needs_fork
def test_workers_do_the_work_and_stay_for_the_next_epoch() -> None:
    loader = _loader()
    job, _ = _apply(loader)
    pids = [{int(pid) for b in _epoch(job, loader) for pid in b["pid"]} for _ in range(2)]
    assert len(pids[0]) == 2
    assert os.getpid() not in pids[0]
    assert pids[0] == pids[1]


@needs_fork
def test_a_second_iterator_leaves_the_first_one_alone() -> None:
    loader = _loader()
    job, applied = _apply(loader)
    outer = []
    for batch in job.batches(loader, iter(loader)):
        outer.append(batch)
        if len(outer) == 2:
            assert len(_epoch(job, loader)) == 10
    assert _values(outer) == _values(list(_loader()))
    assert applied.engaged() == (True, "2 workers, started 2 times")


@needs_fork
def test_a_change_of_the_dataset_reaches_the_workers() -> None:
    dataset = Squares(nested={"limits": [1, 2]})
    loader = _loader(dataset)
    job, applied = _apply(loader)
    _epoch(job, loader)
    dataset.factor = 10
    assert _epoch(job, loader)[1]["x"][0].tolist() == [40.0] * 3
    assert applied.engaged() == (True, "2 workers, started 2 times")


@needs_fork
def test_a_dropped_loader_takes_its_workers_along() -> None:
    loader = _loader()
    job, applied = _apply(loader)
    pids = {int(pid) for b in _epoch(job, loader) for pid in b["pid"]}
    gc.disable()  # not left to the collector
    try:
        del loader
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    finally:
        gc.enable()
    applied.undo()


@pytest.mark.slow
@needs_fork
def test_more_files_may_be_open_until_undone() -> None:
    if sys.platform == "linux":
        import resource

        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        try:
            loader = _loader(Squares(600), batch_size=2)
            job, applied = _apply(loader)
            assert len(_epoch(job, loader)) == 300  # each batch holds a descriptor
            applied.undo()
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@needs_fork
def test_generators_in_the_dataset_differ_between_workers() -> None:
    loader = _loader(Draws(rng=random.Random(1)))
    job, _ = _apply(loader)
    drawn = [value for batch in _epoch(job, loader) for value in batch["x"].tolist()]
    assert len(set(drawn)) == 40


@pytest.mark.parametrize("name", ["Generator", "RandomState"])
def test_numpy_generators_are_reseeded(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    make = numpy.random.default_rng if name == "Generator" else numpy.random.RandomState
    first, second = make(0), make(0)
    worker_safety.reseed(first, 11)
    worker_safety.reseed(second, 12)
    again = make(5)
    worker_safety.reseed(again, 11)
    assert first.normal() == again.normal() != second.normal()


@needs_fork
def test_where_workers_cannot_start_the_main_process_loads(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _three_epochs(Job(), _loader(shuffle=True))
    loader = _loader(shuffle=True)
    job, applied = _apply(loader)

    def no_more_processes() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_more_processes)
    assert torch.get_num_threads() == 2
    assert _three_epochs(job, loader) == expected
    assert torch.get_num_threads() == 4, "they come back"
    assert loader.num_workers == 0
    engaged, told = applied.engaged() or (True, "")
    assert not engaged
    assert "Resource temporarily unavailable" in told
    applied.undo()
    assert torch.get_num_threads() == 4


@needs_fork
def test_loaders_of_accelerate() -> None:
    prepared = pytest.importorskip("accelerate.data_loader").prepare_data_loader(_loader())
    _, _ = _apply(prepared.base_dataloader)
    batches = list(prepared)
    assert _values(batches) == _values(list(_loader()))
    assert os.getpid() not in {int(pid) for batch in batches for pid in batch["pid"]}


@pytest.mark.slow
@needs_fork
def test_a_program_may_keep_many_loaders() -> None:
    loaders = [_loader() for _ in range(boost.PERSISTENT_LOADERS + 1)]
    kept = []
    for loader in loaders:
        job, applied = _apply(loader)
        kept.append(loader.persistent_workers)
        assert len(_epoch(job, loader)) == len(_epoch(job, loader)) == 10
        assert applied.engaged() == (True, "2 workers")
    assert kept == [True] * boost.PERSISTENT_LOADERS + [False]


class Saving(DataLoader[Any]):
    def state_dict(self) -> dict[str, Any]:
        return {}


@needs_fork
@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: _loader(num_workers=1), "already has 1 workers"),
        (lambda: _loader(Stream()), "IterableDataset"),
        (lambda: _loader(Squares(8)), "only 2 batches"),
        (lambda: Saving(Squares(), batch_size=4), "saves its position"),
        (lambda: _loader(Squares(held=iter([1]))), "dataset.held is an iterator"),
        (lambda: _loader(Squares(deep=[{"f": Path(__file__).open()}])), "is an open file"),  # noqa: SIM115
        (lambda: _loader(Squares(x=torch.empty(2, device="meta"))), None),
        (lambda: _loader(Squares(x=io.BytesIO(), lock=threading.Lock(), out=sys.stdout)), None),
        (lambda: _loader(collate_fn=lambda b, g=(i for i in b""): b), None),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed")
def test_what_stands_against_it(loader: Any, reason: str | None) -> None:
    if reason is None:
        _apply(loader())
        return
    with pytest.raises(Declined, match=reason):
        _apply(loader())


@needs_fork
def test_an_iterator_in_the_collate_closure_is_seen() -> None:
    stream = iter([1, 2])
    with pytest.raises(Declined, match=r"collate_fn.stream is an iterator"):
        _apply(_loader(collate_fn=lambda batch: next(stream)))


def test_one_core_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "usable_cores", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(Declined, match="1 usable core"):
        _apply(_loader())


def test_too_many_workers_are_declined() -> None:
    with pytest.raises(Declined, match="8 workers on 4 usable cores"):
        _apply(_loader(), workers=8)


@pytest.mark.parametrize(
    ("spare", "cuda", "held", "workers"),
    [
        (None, True, {}, 4),
        (100 << 30, True, {}, 4),
        (7 << 30, True, {}, 2),
        (2 << 30, True, {}, 0),
        (2 << 30, False, {}, 2),
        (4 << 30, False, {"array": 1 << 30}, 2),
        (2 << 30, False, {"tensor": 1 << 30}, 2),
    ],
)
def test_workers_that_are_spawned_fit_into_the_memory(
    spare: int | None,
    cuda: bool,
    held: dict[str, int],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a copy of the dataset's arrays; tensors are shared."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(boost, "usable_cores", lambda: 16)
    monkeypatch.setattr(boost, "spare_memory", lambda: spare)
    monkeypatch.setattr(boost, "_accelerated", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(worker_safety, "start_method", lambda: "spawn")
    monkeypatch.setattr(worker_safety, "main_guard", lambda: True)
    makes = {"array": numpy.empty, "tensor": torch.empty}
    kinds = {"array": numpy.uint8, "tensor": torch.uint8}
    data = {kind: makes[kind](size, dtype=kinds[kind]) for kind, size in held.items()}
    loader = _loader(Squares(**data))
    if not workers:
        with pytest.raises(Declined, match=r"would take 3\.2 GB, and 2\.1 GB are free"):
            _apply(loader, "auto")
        return
    _, applied = _apply(loader, "auto")
    assert loader.num_workers == workers
    applied.undo()
    assert loader.num_workers == 0


def test_on_windows_few_workers_are_tried() -> None:
    there = dataclasses.replace(FACTS, device="cuda", cores=16)
    assert "num_workers=8" in boost.by_hand(there, {})
    there = dataclasses.replace(there, system="win32")
    assert "num_workers=4" in boost.by_hand(there, {})
    assert "starts Python" in str(boost.applies(there, {"workers": 8}))


def test_a_small_dev_shm_is_seen() -> None:
    images = TensorDataset(torch.zeros(64, 1000))
    reason = worker_safety.too_little_shared_memory(_loader(images), 6, free=lambda: 64 << 10)
    assert reason == "/dev/shm has 0 MB free, 6 batches under way may need 0 MB"
    assert worker_safety.batch_bytes(_loader(images)) == 16_000
    assert worker_safety.too_little_shared_memory(_loader(images), 6, free=lambda: 1 << 20) is None
    unknown = _loader(Squares(), batch_size=32)
    assert worker_safety.too_little_shared_memory(unknown, 6, free=lambda: 64 << 20) is not None


SCRIPT = """
import json, multiprocessing, os
import torch
from torch.utils.data import DataLoader, Dataset
from flatout_agent.boost import Declined
from flatout_agent.boosts import loader_workers
from flatout_agent.job import Job

class Squares(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return torch.tensor([index ** 2, os.getpid()])

class Unpicklable(Squares):
    def __init__(self): self.call = lambda: 0

def main():
    multiprocessing.set_start_method("spawn")
    loader_workers.usable_cores = lambda: 2
    print(json.dumps([loaded(Squares()), loaded(Unpicklable())]))

def loaded(dataset):
    loader, job = DataLoader(dataset, batch_size=4), Job()
    try:
        loader_workers.apply(job, loader, {"workers": 1, "prefetch_factor": 2})
    except Declined as reason:
        return str(reason)
    rows = torch.cat(list(job.batches(loader, iter(loader)))).tolist()
    return [row[0] for row in rows], os.getpid() in {row[1] for row in rows}
"""


def _script(folder: Path, ending: str) -> Any:
    path = folder / "train.py"
    path.write_text(SCRIPT + ending)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_with_a_guard_workers_are_spawned_for_what_can_be_pickled(tmp_path: Path) -> None:
    rows, declined = _script(tmp_path, "if __name__ == '__main__':\n    main()\n")
    assert rows == [[index**2 for index in range(32)], False]
    assert "dataset cannot be pickled" in declined


def test_counts_worth_trying() -> None:
    said = {count: boost.applies(FACTS, {"workers": count}) for count in (1, 2, 4, 8)}
    assert said == {1: "the same as auto here (1)", 2: None, 4: None,
                    8: "8 workers on 4 usable cores"}  # fmt: skip


def test_on_two_cores_loading_must_take_most_of_the_step() -> None:
    two = dataclasses.replace(FACTS, cores=2)
    light, heavy = (dataclasses.replace(two, wait_share=w) for w in (0.3, 0.6))
    assert boost.promise(light, {"workers": 1}) == 1.0
    assert boost.promise(heavy, {"workers": 2}) > boost.promise(heavy, {"workers": 1}) > 1.1


@needs_fork
@pytest.mark.parametrize(("workers", "left"), [(1, 3), (4, 1)])
def test_a_model_on_the_cpu_leaves_the_workers_their_cores(
    workers: int, left: int, four_threads: None
) -> None:
    loader = _loader()
    job, applied = _apply(loader, workers)
    assert torch.get_num_threads() == left
    assert len(_epoch(job, loader)) == 10
    applied.undo()
    assert torch.get_num_threads() == 4


@needs_fork
def test_a_number_of_threads_that_the_user_named_stays(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    _apply(_loader())
    assert torch.get_num_threads() == 4
