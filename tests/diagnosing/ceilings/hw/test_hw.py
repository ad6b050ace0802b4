"""HW: what is slower than its data sheet, or than its twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from diagnosing.ceilings.benched import benched, codes, findings, giving, only, with_rows
from flatout.benching import benching
from flatout.nouns.ceiling import Benched, Ceiling, Point
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from flatout.nouns.machine import Machine
from machines.healthy import a100, changed, container, cpu_server, workstation

MATMUL, COPY, PINNED = "matmul-bf16", "copy-device", "copy-host-to-device-pinned"
SERVER = changed(cpu_server(), cpu__cores=64, cpu__logical_cores=64)
WARNING, NOTE = Severity.WARNING, Severity.NOTE


def with_gpu(number: int | str, machine: Machine | None = None, /, **facts: Any) -> Machine:
    """Eight A100 with other facts of one of them, or of all."""
    gpu = {f"gpus__{number}__{name}": value for name, value in facts.items()}
    made: Machine = changed(machine or a100(), **gpu)
    return made


def slow(machine: Machine, name: str, share: float, *numbers: int) -> Benched:
    """What it gives where these GPUs, or all, give this share of the data sheet."""
    return giving(benched(machine), name, share, [f"cuda:{number}" for number in numbers])


def between(best: float, worst: float) -> Ceiling:
    points = (Point("cuda:0 to cuda:1", best), Point("cuda:2 to cuda:3", worst))
    name = "copy-device-to-device"
    return Ceiling(name, name, "cuda:0", best, "GB/s", 300.0, points[0].size, points)


LIMITED = with_gpu(0, throttles=("sw_power_cap",), power_limit_w=200.0, power_w=199.0)
HOT = with_gpu(
    1,
    throttles=("hw_slowdown", "hw_thermal_slowdown"),
    temperature_c=91,
    clock_sm_mhz=600,
)
HELD = with_gpu(2, throttles=("applications_clocks_setting",), clock_sm_mhz=700)
BRAKED = with_gpu(2, throttles=("hw_power_brake_slowdown",), clock_sm_mhz=700)
SHARED = with_gpu(3, processes=(GpuProcess(4711, "python", 30 * 2**30),))
ECC = changed(container(), gpus__0__ecc=True)
LOW_CLOCK = with_gpu(5, clock_memory_mhz=405, clock_memory_max_mhz=1215)
NARROW = with_gpu(0, with_gpu("all", pcie_generation=4), pcie_width=8)
VIRTUAL = changed(NARROW, container__virtual_machine="kvm")
OLDER = with_gpu(0, with_gpu("all", pcie_generation=4), pcie_generation=3)
OLD = with_gpu("all", pcie_generation=3, pcie_generation_max=3)
FAR = with_gpu(0, changed(with_gpu("all", pcie_generation=4), kernel__numa_nodes=2), numa_node=1)
HYPER_V = changed(with_gpu("all", pcie_generation=4), container__virtual_machine="microsoft")
WARM = with_gpu(6, throttles=("sw_thermal_slowdown",))
APART = changed(
    a100(), gpu_pairs=tuple(changed(pair, link="system") for pair in a100().gpu_pairs or ())
)
TOLD = {
    "a lowered limit": ("HW024", slow(LIMITED, MATMUL, 0.4, 0), LIMITED, WARNING,
        "40% of its peak", "limit 200 W, default 400 W", "sudo nvidia-smi -i 0 -pl 400"),
    "heat": ("HW024", slow(HOT, MATMUL, 0.35, 1), HOT, WARNING,
        "35% of its peak, slowed by heat", "hw_thermal_slowdown, 91 C, 600 of", "-i 1"),
    "a setting": ("HW024", slow(HELD, MATMUL, 0.45, 2), HELD, WARNING,
        "45% of its peak, clocks held down", "applications_clocks_setting", "-rgc"),
    "a brake": ("HW024", slow(BRAKED, MATMUL, 0.45, 2), BRAKED, WARNING,
        "45% of its peak, clocks held down", "hw_power_brake_slowdown", "PERFORMANCE"),
    "without a cause": ("HW024", slow(a100(), MATMUL, 0.31, 4), a100(), WARNING,
        "GPU 4", "31% of the peak on its data sheet", "96.72 of 312 TFLOP/s (31%)",
        "torch 2.9.1+cu128"),
    "without a driver to ask it is told by name": (
        "HW024", slow(a100(), MATMUL, 0.31, 4), Machine(), WARNING, "A100"),
    "gddr with ecc": ("HW024", slow(ECC, COPY, 0.6), ECC, NOTE, "ECC is on"),
    "slow memory": ("HW024", slow(LOW_CLOCK, COPY, 0.4, 5), LOW_CLOCK, WARNING,
        "memory at 405 of 1215 MHz", "-i 5"),
    "half of the lanes": ("HW031", slow(NARROW, PINNED, 0.42, 0), NARROW, WARNING,
        "8 of 16 PCIe lanes"),
    "a virtual machine cannot change it": (
        "HW031", slow(VIRTUAL, PINNED, 0.42, 0), VIRTUAL, NOTE, "8 of 16 PCIe lanes"),
    "a generation that stays low under load": (
        "HW031", slow(OLDER, PINNED, 0.4, 0), OLDER, WARNING, "PCIe generation 3 of 4"),
    "a board without a newer one": ("HW031", slow(OLD, PINNED, 0.4, 0), OLD, NOTE),
    "slow without a cause at the link": ("HW031", slow(FAR, PINNED, 0.3, 0), FAR, WARNING,
        "2 NUMA nodes, the GPU is at node 1", "numactl --cpunodebind=1"),
    "in a virtual machine": (
        "HW031", slow(HYPER_V, PINNED, 0.3, 0), HYPER_V, NOTE, "virtual machine (microsoft)"),
    "one behind the others": ("HW034", slow(WARM, MATMUL, 0.7, 6), WARM, WARNING,
        "GPU 6", "81%", "sw_thermal_slowdown"),
    "told once by the worst measurement": (
        "HW034", giving(slow(a100(), MATMUL, 0.7, 6), PINNED, 0.2, ["cuda:6"]), a100(), WARNING,
        "24%"),
    "one pair far below nvlink": (
        "HW035", with_rows(benched(a100()), between(240.0, 22.0)), a100(), WARNING,
        "22 GB/s from cuda:2 to cuda:3", "NVLink carries 300"),
    "without nvlink a copy from the host is the measure": (
        "HW035", with_rows(benched(APART), between(20.0, 8.0)), APART, WARNING,
        "a copy from the host gives 26.1 GB/s"),
    "another gpu than expected": (
        "HW041", benched(a100(), expected="h100"), a100(), Severity.ERROR,
        "expected h100, found NVIDIA A100"),
    "none at all": (
        "HW041", benched(cpu_server(), expected="h100"), cpu_server(), Severity.ERROR, "no GPU"),
    "others at work": ("HW027", benched(SERVER, busy=0.63), SERVER, NOTE,
        "other programs used 63% of the cores"),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_what_is_told(case: Sequence[Any]) -> None:
    code, found, machine, severity, *words = case
    finding = only(code, found, machine)
    assert finding.severity is severity
    said = "\n".join((finding.title, finding.evidence, *finding.cure.commands))
    assert [word for word in words if word not in said] == [], said


def test_the_cards_own_limit_is_a_note() -> None:
    machine = with_gpu("all", throttles=("sw_power_cap",))
    told = findings("HW024", slow(machine, MATMUL, 0.5), machine)
    assert len(told) == 8
    assert {item.severity for item in told} == {NOTE}
    assert {item.cure.commands for item in told} == {()}


def test_each_cause_is_told() -> None:
    reasons = ("sw_power_cap", "hw_thermal_slowdown", "applications_clocks_setting")
    machine = with_gpu(0, throttles=reasons)
    assert len(findings("HW024", slow(machine, MATMUL, 0.3, 0), machine)) == 3


def test_another_program_is_told_once_however_much_it_costs() -> None:
    found = giving(slow(SHARED, MATMUL, 0.4, 3), COPY, 0.4, ["cuda:3"])
    assert "python (process 4711, 30 GiB)" in only("HW027", found, SHARED).evidence
    assert "HW024" not in codes(found, SHARED)


def test_without_ecc_or_with_hbm_it_is_no_explanation() -> None:
    for machine in (changed(container(), gpus__0__ecc=False), a100()):
        for finding in findings("HW024", slow(machine, COPY, 0.6), machine):
            assert finding.severity is WARNING
            assert "ECC" not in finding.title


def test_where_the_link_is_the_cause_that_alone_is_told() -> None:
    narrow = with_gpu("all", pcie_generation=4, pcie_width=4)
    told = findings("HW031", slow(narrow, PINNED, 0.2), narrow)
    assert {item.title.partition(", ")[2] for item in told} == {"4 of 16 PCIe lanes"}
    told = findings("HW031", slow(a100(), PINNED, 0.4), a100())
    assert not any("lanes" in item.title for item in told)


GOOD = benched(a100())
FP8 = dataclasses.replace(GOOD.ceilings[0], id="matmul-fp8", value=10.0, datasheet=624.0)
BLIND = [
    tuple(dataclasses.replace(one, **facts) for one in slow(a100(), MATMUL, 0.1).ceilings)
    for facts in ({"datasheet": None}, {"value": None})
]
BUSY = with_gpu("all", processes=(GpuProcess(4711, "python", 30 * 2**30),))
DRAWING = with_gpu("all", processes=(GpuProcess(1, "Xorg", 2**26),))
OTHER_KIND = tuple(
    dataclasses.replace(one, name="NVIDIA L4") if one.device == "cuda:6" else one
    for one in GOOD.devices
)
PART = changed(SERVER, cpu__cores=4)
SILENT = [
    # a cause that costs nothing
    *(
        ("HW024", benched(machine), machine)
        for reason in ("sw_power_cap", "sw_thermal_slowdown", "applications_clocks_setting")
        for machine in (with_gpu("all", throttles=(reason,)),)
    ),
    # one good format is enough
    ("HW024", dataclasses.replace(GOOD, ceilings=(*GOOD.ceilings, FP8)), a100()),
    *(("HW024", dataclasses.replace(GOOD, ceilings=rows), a100()) for rows in BLIND),
    ("HW024", benched(ECC), ECC),
    ("HW024", GOOD, a100()),
    ("HW024", slow(a100(), COPY, 0.75), a100()),
    # another program that takes nothing, or little
    ("HW027", benched(BUSY), BUSY),
    ("HW027", slow(DRAWING, MATMUL, 0.4), DRAWING),
    # quiet, unknown, or not all of the machine is ours
    *(("HW027", benched(SERVER, busy=busy), SERVER) for busy in (None, 0.0, 0.1)),
    ("HW027", benched(PART, busy=0.9), PART),
    *(
        ("HW031", benched(machine), machine)
        for link in ({"pcie_width": 8}, {"pcie_generation": 1}, {"pcie_generation": 4})
        for machine in (with_gpu("all", **link),)
    ),
    ("HW034", GOOD, a100()),
    ("HW034", slow(a100(), MATMUL, 0.8, 6), a100()),
    ("HW034", dataclasses.replace(slow(a100(), MATMUL, 0.3, 6), devices=OTHER_KIND), a100()),
    ("HW034", benched(workstation()), workstation()),
    ("HW035", with_rows(benched(APART), between(22.0, 18.0)), APART),
    ("HW035", with_rows(GOOD, between(250.0, 240.0)), a100()),
    ("HW035", GOOD, a100()),
    *(
        ("HW041", benched(a100(), expected=name), a100())
        for name in (None, "a100", "A100-SXM", "NVIDIA A100-SXM4-80GB")
    ),
]


@pytest.mark.parametrize(("code", "found", "machine"), SILENT)
def test_nothing_is_told(code: str, found: Benched, machine: Machine) -> None:
    assert findings(code, found, machine) == ()


def test_what_is_told_here_is_a_share() -> None:
    busy = benching.cores_busy(0.05)
    assert busy is not None
    assert 0 <= busy <= 1
