"""Ceilings as the host measures and keeps them: through a stand-in that crashes, hangs and lies."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.benching import ceiling_run, ceiling_store, ceilings
from flatout.benching.benching import GpuWatch
from flatout.benching.ceiling_run import CeilingOrders, Measurements
from flatout.nouns.ceiling import Ceiling, Device, Point
from flatout.nouns.errors import UserError
from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.machine import Machine
from machines.healthy import a100, changed, cpu_server

STAND_IN = """
import json, os, signal, sys, time

orders = json.loads(sys.argv[-1])

def tell(**said):
    print("flatout-answer " + json.dumps(said), flush=True)

def begin(name, device="cpu", seconds=0.1, unit="GB/s"):
    tell(begin=dict(id=name, device=device, title=name, unit=unit), seconds=seconds)

def wanted(name, device="cpu"):
    return [name, device] not in orders["done"]

def kernel(name, device="cpu", value=1.0):
    if wanted(name, device):
        begin(name, device)
        tell(point=["small", value])
        tell(point=["large", value * 2])
        tell(end=name)

def hello(*planned):
    tell(torch="2.9.0", python="3.12.1", devices=[dict(device="cuda:0", name="NVIDIA H200"),
                                                  dict(device="cpu")])
    tell(planned=[list(one) for one in planned if wanted(*one)])

print("noise")
"""
HERE = Identity("Linux", "AMD EPYC", 2, 8 * 2**30, (), "3.12", "2.9.0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ceiling_store.FOLDER_ENV, str(tmp_path / "cache"))


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An interpreter that tells what a test wants; the test adds what it does."""
    if os.name == "nt":
        pytest.skip("a script that the system starts by its first line")
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{STAND_IN}")
    path.chmod(0o755)
    return path


def run(stand_in: Path, code: str, quick: bool = True) -> Measurements:
    with stand_in.open("a") as file:
        file.write(code)
    return ceiling_run.run(str(stand_in), CeilingOrders(quick=quick))


def test_points_become_a_ceiling(stand_in: Path) -> None:
    measurements = run(stand_in, "hello(('one', 'cpu')); kernel('one'); tell(done=True)")
    (found,) = measurements.ceilings
    assert (found.value, found.best, found.unit) == (2.0, "large", "GB/s")
    assert found.curve == (Point("small", 1.0), Point("large", 2.0))
    assert (measurements.torch, measurements.python) == ("2.9.0", "3.12.1")


def test_the_time_begins_when_the_first_process_is_ready_to_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a process ends before it was ready, the next has the whole time."""
    now_s = 100.0
    monkeypatch.setattr(ceiling_run.time, "monotonic", lambda: now_s)
    measurements, orders = Measurements(), CeilingOrders(quick=True)

    def budget_s() -> float:
        return json.loads(ceiling_run._argument(orders, measurements, []))["budget_s"]

    def say(**answer: Any) -> None:
        process._take(answer)

    process = ceiling_run._Process(measurements, ceiling_run.SilentListener(), quick=True)
    assert budget_s() == ceiling_run.QUICK_S
    now_s += 90.0  # torch's import
    say(torch="2.9.0", devices=[{"device": "cpu"}])
    now_s += 90.0  # torchvision's
    assert budget_s() == ceiling_run.QUICK_S
    say(planned=[["one", "cpu"], ["two", "cpu"]])
    now_s += 5.0
    assert budget_s() == ceiling_run.QUICK_S - 5
    say(planned=[["two", "cpu"]])  # the next process, after a crash
    now_s += 1.0
    assert budget_s() == ceiling_run.QUICK_S - 6
    now_s += 100.0
    assert budget_s() == ceiling_run.LEAST_S


ORDER = """
hello(('a', 'cpu'), ('b', 'cpu'), ('c', 'cpu'))
kernel('c'); kernel('a'); kernel('b'); tell(done=True)
"""
TIMES = """
hello(('t', 'cpu')); begin('t', unit='us'); tell(point=['a', 3.0]); tell(point=['b', 4.0])
tell(end='t'); tell(done=True)
"""
CRASH = """
hello(('one', 'cpu'), ('crash', 'cpu'), ('last', 'cpu'))
kernel('one')
if wanted('crash'):
    begin('crash'); tell(point=['small', 7.0])
    os.kill(os.getpid(), signal.SIGSEGV)
kernel('last'); tell(done=True)
"""
HANG = """
hello(('hang', 'cpu'), ('last', 'cpu'))
if wanted('hang'):
    begin('hang'); time.sleep(300)
kernel('last'); tell(done=True)
"""
HANGS = """
names = [('a', 'cuda:0'), ('b', 'cuda:0'), ('c', 'cuda:0'), ('d', 'cpu')]
hello(*names)
for name, device in names[:3]:
    if wanted(name, device):
        begin(name, device); time.sleep(300)
kernel('d'); tell(done=True)
"""
LEFT = "not tried: the device hung 2 times"


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        (ORDER, [("a", 2.0, ""), ("b", 2.0, ""), ("c", 2.0, "")]),  # as it was planned
        (TIMES, [("t", 3.0, "")]),  # of times the shortest
        (  # what was known before the crash is kept, and the rest is measured
            CRASH,
            [("one", 2.0, ""), ("crash", 7.0, "ended by signal 11 (SIGSEGV)"), ("last", 2.0, "")],
        ),
        pytest.param(
            HANG, [("hang", None, "did not end"), ("last", 2.0, "")], marks=pytest.mark.slow
        ),
        pytest.param(
            HANGS,
            [
                *(("a", None, "did not end"), ("b", None, "did not end")),
                *(("c", None, LEFT), ("d", 2.0, "")),
            ],
            marks=pytest.mark.slow,
        ),
        (  # it never goes round for ever
            "hello(('a', 'cpu')); os._exit(1)",
            [("a", None, "the process ended before it: ended with exit code 1")],
        ),
    ],
)
def test_each_row_has_a_figure_or_the_reason(
    code: str,
    rows: list[tuple[str, float | None, str]],
    stand_in: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "sleep" in code:
        monkeypatch.setitem(ceiling_run.LATE_S, True, 0.5)
    found = run(stand_in, code).ceilings
    assert [(one.id, one.value) for one in found] == [row[:2] for row in rows]
    for one, (*_, note) in zip(found, rows, strict=True):
        assert one.note.startswith(note) and bool(one.note) == bool(note)


@pytest.mark.parametrize(
    "code", ["tell(error='no module', torch_missing=True)", "tell(error='libcudart.so.12')"]
)
def test_without_torch_the_error_has_a_cure(stand_in: Path, code: str) -> None:
    with pytest.raises(UserError) as raised:
        run(stand_in, code)
    missing = "torch_missing" in code
    assert ("not installed" in raised.value.message) == missing
    assert "flatout env" in str(raised.value.next_step) or not missing


@pytest.mark.parametrize("code", ["", "1/0", "print('flatout-answer {')"])
def test_nonsense_is_a_torch_that_cannot_be_used(stand_in: Path, code: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        run(stand_in, code)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be started"):
        ceiling_run.run(str(tmp_path / "python"), CeilingOrders())


@pytest.mark.slow
def test_an_interruption_keeps_what_was_measured(stand_in: Path) -> None:
    code = "hello(('one', 'cpu'), ('two', 'cpu')); kernel('one'); begin('two'); time.sleep(300)"

    class Impatient(ceiling_run.SilentListener):
        def begun(self, ceiling: Ceiling) -> None:
            if ceiling.id == "two":
                signal.raise_signal(signal.SIGINT)

    with stand_in.open("a") as file:
        file.write(code)
    measurements = ceiling_run.run(str(stand_in), CeilingOrders(quick=True), Impatient())
    assert measurements.interrupted
    assert [one.id for one in measurements.ceilings] == ["one"]


def test_measuring_keeps_and_cached_gives_it_back(stand_in: Path) -> None:
    with stand_in.open("a") as file:
        file.write("hello(('copy-device', 'cuda:0')); kernel('copy-device', 'cuda:0', 2000.0)\n")
        file.write("tell(done=True)")
    found = ceilings.measure(str(stand_in), quick=True)
    assert found[0].datasheet == 4800  # H200
    here = ceilings.identity("2.9.0")
    assert ceilings.cached(here) == found
    assert ceilings.cached(dataclasses.replace(here, torch=None)) == found
    assert ceilings.cached(dataclasses.replace(here, torch="2.8.0")) == ()


def row(kernel_id: str, value: float | None, **facts: Any) -> Ceiling:
    return Ceiling(kernel_id, kernel_id, "cpu", value, facts.pop("unit", "GB/s"), **facts)


def test_the_store_adds_and_keeps_the_better_figure() -> None:
    """The lower one was measured while something else ran."""
    slow = [row("a", 1.0), row("b", 5.0), row("t", 9.0, unit="us")]
    fast = [row("a", 2.0), row("c", None), row("t", 4.0, unit="us")]
    for first, then in ((slow, fast), (fast, slow)):
        ceiling_store.keep(HERE, first)
        ceiling_store.keep(HERE, then)
    kept = {one.id: one.value for one in ceiling_store.load(HERE)}
    assert kept == {"a": 2.0, "b": 5.0, "t": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": "another"},
        {"cores": 4},
        {"memory_bytes": 64 * 2**30},
        {"gpus": ()},
        {"gpus": (GpuIdentity("NVIDIA L4", 2**34, "580.1"),)},
        {"torch": "2.10.0"},
    ],
)
def test_of_another_machine_driver_or_torch_nothing_is_known(changes: dict[str, Any]) -> None:
    here = dataclasses.replace(HERE, gpus=(GpuIdentity("NVIDIA L4", 2**34, "570.1"),))
    ceiling_store.keep(here, [row("a", 1.0)])
    assert ceiling_store.load(here) != ()
    assert ceiling_store.load(dataclasses.replace(here, **changes)) == ()


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b'{"version": 1}', b"[]", b"null"])))
def test_a_broken_file_is_nothing_known(content: bytes) -> None:
    path = ceiling_store.keep(HERE, [row("a", 1.0)])
    path.write_bytes(content)
    assert ceiling_store.load(HERE) == ()
    assert ceiling_store.keep(HERE, [row("a", 3.0)]) is not None


def test_rows_of_a_file_that_are_none_are_passed_over() -> None:
    path = ceiling_store.keep(HERE, [row("a", 1.0)])
    document = json.loads(path.read_text())
    document["ceilings"] += [None, {"id": 3}, {"id": "x", "device": "cpu"}]
    path.write_text(json.dumps(document))
    assert [one.id for one in ceiling_store.load(HERE)] == ["a"]


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(ceiling_store.FOLDER_ENV, str(tmp_path / "file"))
    assert ceiling_store.keep(HERE, [row("a", 1.0)]) is None
    assert ceiling_store.load(HERE) == ()


H200 = Device("cuda:0", "NVIDIA H200", 141 * 2**30)


@pytest.mark.parametrize(
    ("ceiling_id", "figure"),
    [
        ("matmul-bf16", 989.4),
        ("matmul-fp64", 67),
        ("matmul-fp32", 67),
        ("conv-nhwc-fp32", 494.7),
        ("attention-fp16", 989.4),
        ("copy-device", 4800),
        ("triad-device", 4800),
        ("copy-host-to-device-pinned", pytest.approx(63.0, rel=0.01)),
        ("copy-host-to-device-pageable", None),
        ("copy-device-to-device", 450),
        ("all-reduce", 450),
        ("launch-rate", None),
        ("matmul-cpu-fp32", None),
    ],
)
def test_the_data_sheet(ceiling_id: str, figure: Any) -> None:
    assert ceilings.sheet_figure(ceiling_id, H200, [H200]) == figure


def test_without_a_data_sheet_there_is_no_figure() -> None:
    unknown = Device("cuda:0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert ceilings.sheet_figure("matmul-bf16", unknown, [unknown]) is None
    assert ceilings.sheet_figure("matmul-bf16", None, []) is None
    grace = Device("cuda:0", "NVIDIA GH200 480GB", 96 * 2**30)
    assert ceilings.sheet_figure("copy-host-to-device-pinned", grace, [grace]) is None


def test_under_load_is_what_counts() -> None:
    machine = changed(a100(), gpus__all__throttles=("gpu_idle",), gpus__all__pcie_generation=1)
    idle = changed(machine, gpus__all__throttles=("gpu_idle", "applications_clocks_setting")).gpus
    busy = changed(
        machine,
        gpus__all__utilization=1.0,
        gpus__all__power_w=390.0,
        gpus__all__throttles=("gpu_idle", "sw_power_cap"),
        gpus__all__pcie_generation=4,
        gpus__all__clock_sm_mhz=1200,
    ).gpus
    samples = [idle, busy, idle]
    with GpuWatch(machine, lambda: samples.pop(0), 0.01) as watch:
        while samples:
            time.sleep(0.01)
    for gpu in watch.machine.gpus:
        assert gpu.throttles == ("sw_power_cap",)
        assert (gpu.pcie_generation, gpu.power_w, gpu.clock_sm_mhz) == (4, 390.0, 1200)
        assert gpu.processes == ()


@pytest.mark.parametrize(("machine", "asked"), [(a100(), 1), (cpu_server(), 0)])
def test_a_driver_that_cannot_be_asked_changes_nothing(machine: Machine, asked: int) -> None:
    """Nothing is asked without a GPU, and nothing more of a driver that failed."""
    times: list[int] = []

    def fail() -> Any:
        times.append(1)
        raise RuntimeError("gone")

    with GpuWatch(machine, fail, 0.01) as watch:
        time.sleep(0.05 if asked == 0 else 0)
        while len(times) < asked:
            time.sleep(0.01)
    assert len(times) == asked
    assert watch.machine == machine
