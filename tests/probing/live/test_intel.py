"""Intel's GPUs sampled, on a fake machine: who computes, who only draws, and who sleeps."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing.live.intel import IntelSampler
from flatout.probing.program_answer import ProgramAnswer
from probing.live.intel_machine import ARC, GIB, IntelMachine, i915, xe
from probing.planted import GARBAGE

MIB = 2**20
IDLE = "device/tile0/gt0/gtidle/idle_residency_ms"


def no_program(command: Sequence[str], limit_s: float) -> ProgramAnswer:
    return ProgramAnswer("", None, "not found")


def xpu_smi(command: Sequence[str], limit_s: float) -> ProgramAnswer:
    device = {"device_name": "Intel(R) Arc(TM) B580", "pci_bdf_address": ARC}
    return ProgramAnswer(json.dumps({"device_list": [device]}), 0)


def test_two_programs_on_one_card(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    machine.battlemage()
    machine.process(10, 1, {"5": xe(1)})
    machine.process(11, 2, {"5": xe(2, memory="256 MiB")})
    machine.process(12, 3, {"5": xe(3, memory="100 MiB", drawn=5)})
    sampler = IntelSampler(tmp_path, xpu_smi)
    (first,) = sampler.samples(100.0, 4)
    assert (first.index, first.vendor, first.name) == (4, "intel", "Intel(R) Arc(TM) B580")
    assert first.utilization is None
    machine.process(10, 1, {"5": xe(1, computed=300_000, passed=2 * 10**6)})
    machine.process(11, 2, {"5": xe(2, computed=500_000, passed=2 * 10**6, memory="256 MiB")})
    machine.process(12, 3, {"5": xe(3, drawn=200_005, passed=2 * 10**6, memory="100 MiB")})
    (second,) = sampler.samples(101.0, 4)
    assert second.utilization == pytest.approx(0.8)
    assert second.memory_used_bytes == (512 + 256 + 100) * MIB
    assert second.memory_bytes == 12 * GIB
    assert second.processes == (
        GpuUse(10, 512 * MIB, pytest.approx(0.3)),  # type: ignore[arg-type]
        GpuUse(11, 256 * MIB, pytest.approx(0.5)),  # type: ignore[arg-type]
    )
    assert (second.clock_mhz, second.temperature_c) == (2400.0, 61.0)


def test_a_processors_own_gpu(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    machine.laptop()
    machine.process(10, 1, {"5": i915(1, drawn=10**8)})
    sampler = IntelSampler(tmp_path, no_program)
    assert sampler.samples(100.0, 1) == ()  # the machine has another GPU
    (gpu,) = sampler.samples(101.0)
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (None, 64 * MIB)
    assert gpu.processes == ()
    assert gpu.utilization == 0.0
    machine.process(10, 1, {"5": i915(1, drawn=10**8, computed=10**9)})
    (gpu,) = sampler.samples(103.0, 1)  # it is one on which somebody computes
    assert gpu.index == 1
    assert gpu.utilization == pytest.approx(0.5)
    assert gpu.processes == (GpuUse(10, 64 * MIB, gpu.utilization),)
    machine.process(10, 1, {})
    assert [gpu.index for gpu in sampler.samples(104.0, 1)] == [1]


def test_a_card_that_sleeps_is_not_woken(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.battlemage()
    sampler = IntelSampler(tmp_path, no_program)
    machine.process(10, 1, {"5": xe(1, computed=5)})
    sampler.samples(100.0)
    machine.write(card, {"device/power/runtime_status": "suspended"})
    (card / "device/tile0/gt0/freq0/act_freq").unlink()
    (tmp_path / "proc/10/fdinfo/5").unlink()
    (gpu,) = sampler.samples(101.0)
    assert (gpu.utilization, gpu.power_w, gpu.clock_mhz) == (0.0, None, None)
    assert gpu.processes == (GpuUse(10, 512 * MIB, 0.0),)


def test_a_card_on_which_nobody_is_seen_may_fall_asleep(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.battlemage()
    sampler = IntelSampler(tmp_path, no_program)

    def clocks(*times_s: float) -> list[float | None]:
        found = []
        for now_s in times_s:
            machine.write(card, {"device/tile0/gt0/freq0/act_freq": f"{now_s:.0f}"})
            found += [gpu.clock_mhz for gpu in sampler.samples(now_s)]
        return found

    assert clocks(100.0, 101.0, 102.0, 110.0, 111.0, 112.0) == [
        100.0,
        101.0,
        101.0,
        101.0,
        111,
        111,
    ]
    machine.process(10, 1, {"5": xe(1)})
    assert clocks(120.0, 121.0, 122.0) == [120.0, 121.0, 122.0]


def test_what_sleeps_does_nothing_and_what_is_awake_may(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.battlemage()
    sampler = IntelSampler(tmp_path, no_program)
    busy = []
    for second, slept_ms in ((0, 0), (1, 995), (11, 10995), (21, 15995)):
        machine.write(card, {IDLE: f"{slept_ms}"})
        busy += [gpu.utilization for gpu in sampler.samples(float(second))]
    assert busy == [None, 0.0, 0.0, None]  # others' programs cannot be seen


def test_intels_own_packages_tell_what_is_free(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    files = {"lmem_total_bytes": f"{16 * GIB}", "lmem_avail_bytes": f"{10 * GIB}"}
    machine.card(0, ARC, "i915", **files)
    (gpu,) = IntelSampler(tmp_path, no_program).samples(0.0)
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (16 * GIB, 6 * GIB)


@pytest.mark.slow
@given(content=GARBAGE, chosen=st.integers(0, 200))
def test_odd_files_are_not_known(content: bytes, chosen: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = IntelMachine(Path(folder))
        machine.battlemage()
        machine.laptop()
        machine.process(10, 1, {"5": xe(1, computed=5)})
        sampler = IntelSampler(Path(folder), no_program)
        sampler.samples(0.0)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files[chosen % len(files)].write_bytes(content)
        for now_s in (1.0, 11.0):
            for gpu in sampler.samples(now_s):
                assert _is_plausible(gpu)
        assert all(map(_is_plausible, IntelSampler(Path(folder), no_program).samples(0.0)))


def _is_plausible(gpu: GpuSample) -> bool:
    numbers = (gpu.memory_used_bytes, gpu.memory_bytes, gpu.power_w, gpu.temperature_c)
    return all(number is None or 0 <= number < 1e15 for number in numbers) and (
        gpu.utilization is None or 0 <= gpu.utilization <= 1
    )
