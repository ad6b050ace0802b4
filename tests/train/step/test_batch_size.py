from __future__ import annotations

import copy
import gc
import random
import statistics
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout
from flatout_train.errors import UsageError
from flatout_train.step import batch_size as file
from flatout_train.step.batch_size import BatchSize, HostPeak, find_batch_size
from train.step.limited_memory import Held, Memory
from train.step.loops import same

pytestmark = pytest.mark.slow

MIB = 2**20


class Small(nn.Module):
    """Holds 16 elements a sample; with all that steps may change: statistics, dropout, an RNG."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.one, self.norm, self.held = nn.Linear(8, 8), nn.BatchNorm1d(8), Held(memory)
        self.drop, self.two = nn.Dropout(0.1), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        random.random()
        return self.two(self.drop(self.held(self.norm(self.held(self.one(x))))))  # type: ignore[no-any-return]


def make_step(memory: Memory, **options: Any) -> Any:
    torch.manual_seed(0)
    model = Small(memory)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return flatout.train_step(
        model, F.cross_entropy, optimizer, scheduler=scheduler, compile=False, ema=0.9, **options
    )


def make_batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 8), torch.randint(3, (rows,))


def everything(step: Any) -> dict[str, Any]:
    """All that a step may change, as values and as objects."""
    return copy.deepcopy(
        {
            "state": step.state_dict(),
            "buffers": dict(step.model.named_buffers()),
            "ema": step.ema.state_dict(),
            "metrics": step.metrics(),
            "training": step.model.training,
            "python": random.getstate(),
            "torch": torch.get_rng_state(),
            "objects": [id(p) for p in step.model.parameters()]
            + [id(b) for b in step.model.buffers()],
            "memory": step.notes["memory"],
        }
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RUN_S", 1e-4)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches until memory ends, whatever the rates are."""
    monkeypatch.setattr(file, "PATIENCE", 10**6)


@pytest.mark.usefixtures("patient")
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("fits", "start", "limit", "largest"),
    [
        (37, 2, None, 37),
        (37, 2, 20, 20),
        (16, 2, None, 16),
        (37, 50, None, 37),
        (37, 2, 37, 37),
        (3, 5, 9, 3),
    ],
)
def test_the_largest_that_fits_is_found(
    fits: int, start: int, limit: int | None, largest: int
) -> None:
    step = make_step(Memory(16 * fits))
    found = find_batch_size(step, make_batch, start=start, limit=limit)
    assert isinstance(found, BatchSize)
    assert found.largest == largest
    assert found.fastest in found.samples_per_s
    assert found.samples_per_s[found.fastest] == max(found.samples_per_s.values())
    assert list(found.samples_per_s) == sorted(found.samples_per_s)
    assert max(found.samples_per_s) <= largest
    assert all(rate > 0 for rate in found.samples_per_s.values())


@pytest.mark.usefixtures("patient")
@pytest.mark.few(1)
@pytest.mark.parametrize("before", [3, 0])
def test_nothing_is_left_behind(before: int) -> None:
    memory = Memory(16 * 37)
    step = make_step(memory, accumulate=2)
    memory.limit = 16 * 11
    for _ in range(2 * before):
        step(make_batch(4))
    was = everything(step)
    batches: list[weakref.ref[Tensor]] = []

    def watched(rows: int) -> Any:
        batch = make_batch(rows)
        batches.append(weakref.ref(batch[0]))
        return batch

    find_batch_size(step, watched, start=2)
    assert same(everything(step), was)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert memory.held == 0
    assert len(batches) > 5
    assert all(ref() is None for ref in batches)


@pytest.mark.usefixtures("patient")
@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["model", "make_batch"])
def test_nothing_is_left_behind_when_the_user_s_code_raises(where: str) -> None:
    memory = Memory(16 * 37)
    step = make_step(memory)
    step(make_batch(4))
    was = everything(step)

    class OwnError(Exception):
        pass

    def failing(rows: int) -> Any:
        if where == "make_batch" and rows > 8:
            raise OwnError
        return make_batch(rows)

    def forward(*args: Any) -> None:
        if where == "model" and len(args[1][0]) > 8:
            raise OwnError

    hook = step.model.register_forward_pre_hook(forward)
    with pytest.raises(OwnError) as raised:
        find_batch_size(step, failing, start=2)
    hook.remove()
    assert same(everything(step), was)
    del raised
    gc.collect()
    assert memory.held == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("patient")
def test_memory_that_make_batch_does_not_find_counts() -> None:
    def limited(rows: int) -> Any:
        if rows > 11:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return make_batch(rows)

    assert find_batch_size(make_step(Memory(float("inf"))), limited, start=2).largest == 11


@pytest.mark.thorough
@pytest.mark.usefixtures("patient")
def test_memory_that_ends_in_the_optimizer_counts() -> None:
    step = make_step(Memory(float("inf")))
    step(make_batch(4))
    was, plain = everything(step), step.optimizer.step

    def take(*args: Any) -> Any:
        plain(*args)
        if step.optimizer.rows > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    step.optimizer.step = take
    step.model.register_forward_pre_hook(
        lambda model, args: setattr(step.optimizer, "rows", len(args[0]))
    )
    assert find_batch_size(step, make_batch, start=2).largest == 20
    assert same(everything(step), was)


@pytest.mark.thorough
def test_on_the_cpu_it_ends_where_the_rate_ends_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {2: 19.0, 4: 30.0, 8: 30.5, 16: 29.0}
    step, sizes = make_step(Memory(float("inf"))), []

    def make(rows: int) -> Any:
        sizes.append(rows)
        return make_batch(rows)

    monkeypatch.setattr(
        file._Search,
        "_seconds",
        lambda self, batch, calls: calls * len(batch[0]) / rates[len(batch[0])],
    )
    found = find_batch_size(step, make, start=2)
    assert found == BatchSize(16, 8, rates)
    assert max(sizes) == 16


@pytest.mark.thorough
def test_it_ends_before_the_host_s_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """130 MiB are left and 91 may be taken: at 1 MiB a sample 64 samples, and not 128."""
    monkeypatch.setattr(file, "PATIENCE", 10**6)
    monkeypatch.setattr(file, "spare_memory", lambda: 130 * 2**20)
    sizes: list[int] = []

    def make(rows: int) -> Any:
        sizes.append(rows)
        torch.ones(rows, 2**18)
        return make_batch(rows)

    found = find_batch_size(make_step(Memory(float("inf"))), make, start=4)
    assert found.largest == max(sizes) == 64


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("device", "given"), [(torch.device("cuda", 1), [torch.device("cuda", 1)]), ("mps", [])]
)
def test_the_step_s_own_device_is_waited_for(
    device: Any, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    module = SimpleNamespace(synchronize=lambda *names: calls.append(list(names)))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch, "mps", module)
    step: Any = SimpleNamespace(device=torch.device(device))
    file._Search(step, make_batch, 1, None)._wait()
    assert calls == [given]


@pytest.mark.thorough
def test_one_sample_that_does_not_fit() -> None:
    step = make_step(Memory(7))
    was = everything(step)
    with pytest.raises(torch.OutOfMemoryError, match="not even one sample") as raised:
        find_batch_size(step, lambda rows: make_batch(rows + 1), start=4)
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert same(everything(step), was)


@pytest.mark.parametrize(("start", "limit"), [(0, None), (-1, 5), (8, 7)])
def test_wrong_bounds_are_named(start: int, limit: int | None) -> None:
    with pytest.raises(UsageError, match=f"start={start} and limit={limit}"):
        find_batch_size(make_step(Memory(8)), make_batch, start=start, limit=limit)


@pytest.mark.thorough
def test_in_the_middle_of_a_group_it_is_refused() -> None:
    step = make_step(Memory(800), accumulate=2)
    step(make_batch(4))
    with pytest.raises(UsageError, match=r"1 calls so far.*step\.flush"):
        find_batch_size(step, make_batch, start=2)


def test_a_model_of_several_ranks_is_refused() -> None:
    step = make_step(Memory(800))
    step._group.ranks = SimpleNamespace()
    with pytest.raises(UsageError, match="before DistributedDataParallel or fully_shard"):
        find_batch_size(step, make_batch, start=2)


def held(mib: int) -> int:
    torch.ones(mib, MIB, dtype=torch.uint8)
    return mib


def peak_after(before_mib: int, within_mib: int) -> int:
    held(before_mib)
    with HostPeak() as peak:
        held(within_mib)
    return peak.bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the peak back")
def test_the_peak_within_and_not_the_one_before() -> None:
    # Resident bytes are the whole process's: another thread's memory, or a page of a library that
    # the system takes back meanwhile, falls into one of the measurements, not into most of them.
    assert 44 * MIB < statistics.median(peak_after(96, 48) for _ in range(5)) < 70 * MIB
    assert statistics.median(peak_after(96, 0) for _ in range(5)) < 10 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="an earlier test may have held more")
def test_where_the_peak_cannot_be_set_back_only_what_is_above_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with HostPeak():  # sets back what earlier tests have held
        pass
    monkeypatch.setattr(file, "RESET_PEAK", tmp_path / "none" / "clear_refs")
    with HostPeak() as peak:
        held(200)
    first = peak.bytes
    with HostPeak() as peak:
        held(100)
    assert first > 100 * MIB
    assert peak.bytes < 20 * MIB


@pytest.mark.gpu
def test_on_a_gpu_it_ends_where_memory_does() -> None:
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)), nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    step = flatout.train_step(model, F.mse_loss, optimizer, compile=False, graph=False)

    def make(rows: int) -> Any:
        return torch.randn(rows, 1024, device=device), torch.randn(rows, 1, device=device)

    step(make(4))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((before + 600 * 2**20) / total)
    try:
        found = find_batch_size(step, make, start=64)
        assert torch.cuda.memory_reserved() <= before
        step(make(found.largest * 9 // 10))  # where blocks lie otherwise, the very last may not fit
        assert step.notes["memory"] == "everything fitted"
        assert 4096 < found.largest < 200_000
        assert found.samples_per_s[found.fastest] > found.samples_per_s[64]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
