"""Memory: the report against what is known, the history of real steps, leaks that are real."""

from __future__ import annotations

import gc
import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import flatout
from flatout_agent import limits
from flatout_train.errors import UsageError
from flatout_train.memory import counters as memory_counters
from flatout_train.memory import growth as memory_leaks
from flatout_train.memory import history_files as memory_history
from flatout_train.memory.counters import Counters
from flatout_train.memory.reporting import live_tensors
from probing.planted import plant

MIB = 2**20
CPU = torch.device("cpu")


def test_a_report_sorts_the_memory_of_a_model_and_its_optimizer() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 256))
    model[2].weight = model[0].weight  # one storage, counted once
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, 256)).sum().backward()
    optimizer.step()
    report = flatout.memory.report("cpu", model=model, optimizer=optimizer)
    parameters = 4 * (256 * 256 + 2 * 256 + 2 * 256)
    assert report.categories["parameters"] == parameters
    assert report.categories["gradients"] == parameters
    steps = 4 * len(list(model.parameters()))
    assert report.categories["optimizer state"] == 2 * parameters + steps
    assert report.categories["buffers"] == 4 * 2 * 256 + 8
    assert report.allocated is not None
    assert sum(report.categories.values()) == report.allocated


def test_a_step_stands_for_its_model_optimizer_and_average() -> None:
    model = nn.Linear(8, 8)
    average = torch.optim.swa_utils.AveragedModel(model)

    class Step:
        pass

    step: Any = Step()
    step.model, step.optimizer, step.ema = model, torch.optim.SGD(model.parameters()), average
    report = flatout.memory.report(step=step)
    assert report.device == CPU
    assert report.categories["parameters"] == 4 * 72
    assert report.categories["averaged weights"] == 4 * 72 + 8


def test_on_the_cpu_the_process_and_the_machine_are_counted() -> None:
    resident = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(("VmRSS", "VmHWM"))
    }
    report = flatout.memory.report("cpu")
    assert report.allocated == pytest.approx(resident["VmRSS"], rel=0.05)
    assert report.peak == pytest.approx(resident["VmHWM"], rel=0.05)
    assert report.free is not None
    assert report.total is not None
    assert 0 < report.free < report.total
    assert (report.reserved, report.fragmentation, report.categories) == (None, None, {})


def test_what_cannot_be_read_is_none_and_never_a_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    report = flatout.memory.report("cpu", model=nn.Linear(2, 2))
    assert (report.allocated, report.free, report.total) == (None, None, None)
    assert report.categories["parameters"] == 24
    assert "other" not in report.categories
    assert "unknown" in str(report)
    assert flatout.memory.free("cpu") is None
    monkeypatch.setattr(memory_counters, "_malloc_counts", lambda: False)
    with pytest.raises(UsageError, match="memory in use on cpu cannot be read"):
        flatout.memory.leaks("cpu")


def test_a_containers_limit_stands_before_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "proc/meminfo": "MemTotal: 900000 kB\nMemAvailable: 800000 kB\n",
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": f"{64 * MIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{40 * MIB}\n",
    }
    monkeypatch.setattr(limits, "ROOT", plant(tmp_path, files))
    report = flatout.memory.report("cpu")
    assert (report.free, report.total) == (24 * MIB, 64 * MIB)
    (tmp_path / "sys/fs/cgroup/job/memory.max").write_text("max\n")
    unlimited = flatout.memory.report("cpu")
    assert unlimited.total is not None
    assert unlimited.total > 64 * MIB


class FakeCuda:
    """What torch.cuda tells of memory, with torch's own names."""

    stats: ClassVar = {
        "allocated_bytes.all.current": 300 * MIB,
        "reserved_bytes.all.current": 400 * MIB,
        "allocated_bytes.all.peak": 350 * MIB,
        "inactive_split_bytes.all.current": 50 * MIB,
    }

    def memory_stats(self, device: Any) -> dict[str, int]:
        return self.stats

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 600 * MIB, 1024 * MIB


def test_fragmentation_is_the_split_share_of_what_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda", 0)
    counters = memory_counters._allocator(FakeCuda(), device)
    assert counters == Counters(
        300 * MIB, 400 * MIB, 350 * MIB, 600 * MIB, 1024 * MIB, split=50 * MIB
    )
    monkeypatch.setattr(memory_counters, "read", lambda _: counters)
    monkeypatch.setattr(memory_counters, "name", lambda _: "cuda:0 (a GPU)")
    report = flatout.memory.report(device)
    assert report.fragmentation == 0.125
    assert str(report).splitlines() == [
        "Memory of cuda:0 (a GPU)",
        "allocated                300.0 MiB",
        "reserved                 400.0 MiB",
        "peak                     350.0 MiB",
        "free                     600.0 MiB  of 1.0 GiB",
        "fragmentation                  12%  of reserved",
    ]


def test_the_table_is_at_most_80_columns_wide() -> None:
    model = nn.Linear(8, 8)
    text = str(flatout.memory.report("cpu", model=model))
    assert max(len(line) for line in text.splitlines()) <= 80


def test_freeing_gives_memory_back_to_the_system() -> None:
    blocks = [torch.ones(1000) for _ in range(20_000)]  # 80 MB in pieces that malloc keeps
    keep = blocks[::1000]
    del blocks
    assert (flatout.memory.free("cpu") or 0) >= 0
    assert all(bool((block == 1).all()) for block in keep)
    assert isinstance(flatout.memory.free("cpu"), int)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5, float("nan")])
def test_a_fraction_is_more_than_0_and_at_most_1(fraction: float) -> None:
    with pytest.raises(UsageError, match="fraction="):
        flatout.memory.limit(fraction, "cuda:0")


def test_the_cpu_has_no_limit_and_the_cure_is_named() -> None:
    with pytest.raises(UsageError, match="systemd-run"):
        flatout.memory.limit(0.5, "cpu")


def test_other_kinds_of_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="memory of meta"):
        flatout.memory.report("meta")


class Page(HTMLParser):
    """What a drawing shows: open tags at the end, polygons, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.polygons = 0
        self.text = ""
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.polygons += tag == "polygon"
        if tag not in ("meta", "br", "line", "circle", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.polygons += tag == "polygon"

    def handle_data(self, data: str) -> None:
        self.text += data


def the_program(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """One step with 32 MiB that only its first lines need; their line number is returned."""
    big = torch.ones(8 * MIB)
    line = the_program.__code__.co_firstlineno + 2
    loss = model(big[:1024].reshape(4, 256)).square().mean()
    del big
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return line


def test_a_history_shows_real_steps_by_part_and_by_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    with flatout.memory.history(tmp_path / "memory", "cpu") as history:
        for _ in range(2):
            line = the_program(model, optimizer)
    assert history.peak >= 32 * MIB
    total, place, pieces = history.largest[0]
    assert (total, pieces) == (32 * MIB, 1)
    assert place.endswith(f"test_memory.py:{line}")
    document = json.loads(history.snapshot.read_text())
    parts = {allocation["part"] for allocation in document["allocations"]}
    assert parts >= {"forward", "backward", "optimizer", "other"}
    page = Page(history.drawing.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.links == []  # it needs nothing else
    assert page.polygons >= 4
    assert f"test_memory.py:{line}" in page.text
    state = sum(
        a["size"] for a in document["allocations"] if a["part"] == "optimizer" and not a["end"]
    )
    expected = sum(value.nbytes for state in optimizer.state.values() for value in state.values())
    assert state >= expected


def test_a_history_is_written_when_its_block_fails_and_hides_no_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), flatout.memory.history(tmp_path / "m", "cpu") as history:
        torch.ones(MIB)
        raise ZeroDivisionError
    assert history.peak >= 4 * MIB
    assert history.drawing.exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "memory.html").write_text("mine")
    history = flatout.memory.history
    with pytest.raises(UsageError, match="already exists"), history(tmp_path / "memory", "cpu"):
        pass
    assert (tmp_path / "memory.html").read_text() == "mine"
    with pytest.raises(UsageError, match="does not exist"), history(tmp_path / "a" / "b", "cpu"):
        pass


def entry(action: str, address: int, size: int, time_us: int, *frames: tuple[str, int]) -> Any:
    shown = [{"filename": file, "line": line, "name": "f"} for file, line in frames]
    return {
        "action": action, "addr": address, "size": size, "time_us": time_us, "frames": shown,
        "stream": 0,
    }  # fmt: skip


def test_a_snapshot_of_torchs_allocator_is_read_as_its_viewer_reads_it() -> None:
    nn_module = ("/lib/torch/nn/modules/module.py", 1)
    trace = [
        entry("segment_alloc", 1, 64 * MIB, 0),
        entry(
            "alloc",
            1,
            10 * MIB,
            10,
            ("/lib/torch/nn/functional.py", 5),
            nn_module,
            ("/u/net.py", 7),
        ),
        entry("alloc", 2, 20 * MIB, 20),  # the thread of the backward pass
        entry("free_requested", 1, 10 * MIB, 30),
        entry("free_completed", 1, 10 * MIB, 35),
        entry("free_requested", 9, 5 * MIB, 40),  # from before the record
        entry("alloc", 3, 1 * MIB, 50, ("/lib/torch/optim/adam.py", 9), ("/u/train.py", 3)),
    ]
    timeline = memory_history.from_snapshot({"device_traces": [[], trace]}, 1, held=100 * MIB)
    assert timeline.peak == 130 * MIB
    assert timeline.largest() == [
        (20 * MIB, "(backward pass)", 1),
        (10 * MIB, "/u/net.py:7", 1),
        (5 * MIB, "(before)", 1),
    ]
    assert [a.part for a in timeline.allocations] == ["forward", "backward", "before", "optimizer"]
    assert timeline.moments[-1].total == 116 * MIB


def test_what_a_backward_pass_allocates_has_the_line_that_ran_it() -> None:
    """On an H200 such allocations have no frames; the largest may be cuBLAS's, for that thread."""
    trace = [
        entry("alloc", 1, 32 * MIB, 1_000_000, ("/u/train.py", 3)),
        entry("alloc", 2, 32 * MIB, 2_000_000),
        entry("alloc", 3, 1 * MIB, 2_500_500),
        entry("alloc", 4, 2 * MIB, 3_000_000),
    ]
    first = memory_history.BackwardCall("/u/train.py:5", 1.9, 2.5)
    calls = [first, memory_history.BackwardCall("/u/gan.py:9", 2.9)]
    timeline = memory_history.from_snapshot({"device_traces": [trace]}, 0, 0, calls)
    assert timeline.largest() == [
        (33 * MIB, "/u/train.py:5", 2),
        (32 * MIB, "/u/train.py:3", 1),
        (2 * MIB, "/u/gan.py:9", 1),
    ]
    assert [a.part for a in timeline.allocations] == ["other", *["backward"] * 3]


def test_backward_passes_are_noted_with_their_lines() -> None:
    weight = torch.ones(3, requires_grad=True)
    originals = torch.autograd.backward, torch.autograd.grad
    line = test_backward_passes_are_noted_with_their_lines.__code__.co_firstlineno + 5
    with memory_history.backward_calls() as calls:
        weight.sum().backward()
        torch.autograd.grad(weight.sum(), weight)
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
    assert [call.place for call in calls] == [f"{__file__}:{line + n}" for n in (0, 1, 3)]
    assert all(call.began <= call.ended < float("inf") for call in calls)
    assert (torch.autograd.backward, torch.autograd.grad) == originals


def test_losses_kept_with_their_graph_are_found_and_named() -> None:
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
    x = torch.randn(512, 64)
    kept: list[Tensor] = []
    check = flatout.memory.leaks("cpu")
    for _ in range(40):
        kept.append(model(x).square().mean())
        check.check()
    growth = check.growth()
    assert growth.leaks
    # one activation of 512 x 1024 floats and one of 512 x 64 stay per step
    assert growth.bytes_per_step == pytest.approx(4 * 512 * (1024 + 64), rel=0.02)
    assert growth.kinds[0].shape == (512, 1024)
    assert growth.kinds[0].with_graph
    assert "use .detach()" in str(growth)


def test_detached_losses_are_no_leak_worth_a_report() -> None:
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
    x = torch.randn(512, 64)
    check = flatout.memory.leaks("cpu")
    for _ in range(40):
        model(x).square().mean().detach()
        check.check()
    growth = check.growth()
    assert growth.bytes_per_step < 1024
    assert growth.steps > 0


def test_without_the_c_librarys_count_the_resident_memory_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_counters, "_malloc_counts", lambda: False)
    kept: list[Tensor] = []
    check = flatout.memory.leaks("cpu")
    for _ in range(30):
        kept.append(torch.ones(2 * MIB))  # malloc maps pieces of this size singly
        check.check()
    growth = check.growth()
    assert growth.leaks
    assert growth.bytes_per_step == pytest.approx(8 * MIB, rel=0.05)


def series(values: list[int]) -> memory_leaks.Growth:
    check = memory_leaks.LeakCheck(CPU, 1)
    check._skip = 0
    given = iter(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_counters, "live", lambda _: next(given))
        patch.setattr(memory_leaks, "_census", memory_leaks.Counter)
        for _ in values:
            check.check()
        return check.growth()


def test_noise_is_no_leak_and_a_leak_below_the_noise_is_found() -> None:
    rng = random.Random(0)
    alarms = sum(
        series([rng.randrange(50 * MIB, 60 * MIB) for _ in range(40)]).leaks for _ in range(200)
    )
    assert alarms <= 2
    leaking = [i * 100_000 + rng.randrange(10 * MIB) for i in range(300)]
    growth = series(leaking)
    assert growth.leaks
    assert growth.bytes_per_step == pytest.approx(100_000, rel=0.25)


def test_growth_that_stops_is_no_leak() -> None:
    assert not series([min(i, 12) * MIB for i in range(60)]).leaks
    assert not series([100 * MIB] * 60).leaks
    assert not series([100 * MIB - i * MIB for i in range(60)]).leaks


def test_few_measurements_are_not_judged_and_many_are_thinned_out() -> None:
    assert series([1, 2, 3]).steps == 0
    check = memory_leaks.LeakCheck(CPU, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_counters, "live", lambda _: check._calls * MIB)
        for _ in range(5000):
            check.check()
        growth = check.growth()
    assert growth.leaks
    assert len(check._points) <= 256
    assert growth.bytes_per_step == MIB
    assert growth.steps > 3000


def test_steps_between_measurements_count() -> None:
    check = memory_leaks.LeakCheck(CPU, every=4)
    values = iter(range(0, 1000 * MIB, MIB))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_counters, "live", lambda _: next(values))
        for _ in range(80):
            check.check()
        growth = check.growth()
    assert growth.bytes_per_step == MIB / 4
    with pytest.raises(UsageError, match="every="):
        flatout.memory.leaks("cpu", every=0)


@pytest.mark.gpu
def test_on_a_gpu_report_free_and_limit_do_what_they_say() -> None:
    gc.collect()
    flatout.memory.free()
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    report = flatout.memory.report()
    assert report.allocated is not None
    assert report.reserved is not None
    assert 64 * MIB <= report.allocated <= report.reserved
    assert "cuda:0" in str(report)
    del block
    assert (flatout.memory.free() or 0) >= 64 * MIB
    free, total = torch.cuda.mem_get_info()
    flatout.memory.limit(0.01)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 20, dtype=torch.uint8, device="cuda")
    finally:
        flatout.memory.limit(1.0)
    assert free > total // 20


@pytest.mark.gpu
def test_on_a_gpu_a_history_is_torchs_own_snapshot_with_a_drawing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with flatout.memory.history(tmp_path / "memory") as history:
        line = the_program_on_gpu(model, optimizer)
    assert history.peak >= 256 * MIB
    assert history.largest[0][1].endswith(f"test_memory.py:{line}")
    places = [place for _, place, _ in history.largest]
    assert any(place.endswith(f"test_memory.py:{line + 2}") for place in places), "the backward"
    assert "(backward pass)" not in places
    assert history.snapshot.suffix == ".pickle"
    page = Page(history.drawing.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.polygons >= 3


def the_program_on_gpu(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    big = torch.ones(64 * MIB, device="cuda")  # more than cuBLAS's own, 32 MiB on Hopper
    line = the_program_on_gpu.__code__.co_firstlineno + 1
    loss = model(big[:1024].reshape(4, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del big
    return line


@pytest.mark.gpu
def test_on_a_gpu_a_leak_is_measured_to_the_byte() -> None:
    kept: list[Tensor] = []
    check = flatout.memory.leaks()
    for _ in range(20):
        kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        check.check()
    growth = check.growth()
    assert growth.leaks
    assert growth.bytes_per_step == MIB


def test_tensors_with_which_the_compiler_traces_are_not_counted():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(1 << 20)
    model = torch.nn.Linear(2, 2)
    assert flatout.memory.report(model=model).categories["parameters"] == 24
    assert not any(item is fake for item in live_tensors())
    assert any(item is model.weight for item in live_tensors())
