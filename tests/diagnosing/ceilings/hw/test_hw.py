"""HW: what is slower than its data sheet, or than its twin."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.ceilings.benched import benched, codes, cpu_row, findings, giving, only, with_rows
from flatout.benching import benching
from flatout.nouns.ceiling import Ceiling, Point
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuProcess
from flatout.nouns.machine import Machine
from machines.healthy import a100, changed, container, cpu_server, workstation

PINNED = "copy-host-to-device-pinned"
SLOW, FAST = cpu_row("memory-cpu", 14.0), cpu_row("memory-cpu", 62.0)
SERVER = changed(cpu_server(), cpu__cores=64, cpu__logical_cores=64)


def test_a_lowered_limit() -> None:
    facts = {"throttles": ("sw_power_cap",), "power_limit_w": 200.0, "power_w": 199.0}
    machine = changed(a100(), **{f"gpus__0__{name}": value for name, value in facts.items()})
    found = giving(benched(machine), "matmul-bf16", 0.4, ["cuda:0"])
    finding = only("HW024", found, machine)
    assert finding.severity is Severity.WARNING
    assert "40% of its peak" in finding.title
    assert "limit 200 W, default 400 W" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0 -pl 400",)


def test_the_cards_own_limit_is_a_note() -> None:
    machine = changed(a100(), gpus__all__throttles=("sw_power_cap",))
    told = findings("HW024", giving(benched(machine), "matmul-bf16", 0.5), machine)
    assert len(told) == 8
    assert {item.severity for item in told} == {Severity.NOTE}
    assert {item.cure.commands for item in told} == {()}


def test_heat() -> None:
    machine = changed(
        a100(),
        gpus__1__throttles=("hw_slowdown", "hw_thermal_slowdown"),
        gpus__1__temperature_c=91,
        gpus__1__clock_sm_mhz=600,
    )
    found = giving(benched(machine), "matmul-bf16", 0.35, ["cuda:1"])
    finding = only("HW024", found, machine)
    assert finding.title.endswith("35% of its peak, slowed by heat")
    assert "hw_thermal_slowdown, 91 C, 600 of" in finding.evidence
    assert "-i 1" in finding.cure.commands[0]


@pytest.mark.parametrize(
    ("reason", "command"),
    [("applications_clocks_setting", "-rgc"), ("hw_power_brake_slowdown", "PERFORMANCE")],
)
def test_a_setting_or_a_brake(reason: str, command: str) -> None:
    machine = changed(a100(), gpus__2__throttles=(reason,), gpus__2__clock_sm_mhz=700)
    found = giving(benched(machine), "matmul-bf16", 0.45, ["cuda:2"])
    finding = only("HW024", found, machine)
    assert finding.title.endswith("45% of its peak, clocks held down")
    assert reason in finding.evidence
    assert command in finding.cure.commands[0]


@pytest.mark.parametrize(
    "reason", ["sw_power_cap", "sw_thermal_slowdown", "applications_clocks_setting"]
)
def test_silent_where_a_cause_costs_nothing(reason: str) -> None:
    machine = changed(a100(), gpus__all__throttles=(reason,))
    assert findings("HW024", benched(machine), machine) == ()


def test_each_cause_is_told() -> None:
    reasons = ("sw_power_cap", "hw_thermal_slowdown", "applications_clocks_setting")
    machine = changed(a100(), gpus__0__throttles=reasons)
    found = giving(benched(machine), "matmul-bf16", 0.3, ["cuda:0"])
    assert len(findings("HW024", found, machine)) == 3


def test_another_program() -> None:
    machine = changed(a100(), gpus__3__processes=(GpuProcess(4711, "python", 30 * 2**30),))
    found = giving(benched(machine), "matmul-bf16", 0.4, ["cuda:3"])
    found = giving(found, "copy-device", 0.4, ["cuda:3"])
    finding = only("HW027", found, machine)  # once, however much it costs
    assert "python (process 4711, 30 GiB)" in finding.evidence
    assert "HW024" not in codes(found, machine)


def test_silent_where_it_takes_nothing() -> None:
    machine = changed(a100(), gpus__all__processes=(GpuProcess(4711, "python", 30 * 2**30),))
    assert findings("HW027", benched(machine), machine) == ()
    small = changed(a100(), gpus__all__processes=(GpuProcess(1, "Xorg", 2**26),))
    assert findings("HW027", giving(benched(small), "matmul-bf16", 0.4), small) == ()


def test_without_a_cause() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.31, ["cuda:4"])
    finding = only("HW024", found, a100())
    assert finding.severity is Severity.WARNING
    assert "GPU 4" in finding.title
    assert finding.title.endswith("31% of the peak on its data sheet")
    assert "96.72 of 312 TFLOP/s (31%)" in finding.evidence
    assert "torch 2.9.1+cu128" in finding.evidence


def test_without_a_driver_to_ask_it_is_told_by_name() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.31, ["cuda:4"])
    assert "A100" in only("HW024", found, Machine()).title


def test_one_good_format_is_enough() -> None:
    found = benched(a100())
    slow = dataclasses.replace(found.ceilings[0], id="matmul-fp8", value=10.0, datasheet=624.0)
    assert (
        findings("HW024", dataclasses.replace(found, ceilings=(*found.ceilings, slow)), a100())
        == ()
    )


def test_silent_without_a_data_sheet_or_a_value() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.1)
    for facts in ({"datasheet": None}, {"value": None}):
        rows = tuple(dataclasses.replace(one, **facts) for one in found.ceilings)
        assert findings("HW024", dataclasses.replace(found, ceilings=rows), a100()) == ()


def test_gddr_with_ecc() -> None:
    machine = changed(container(), gpus__0__ecc=True)
    finding = only("HW024", giving(benched(machine), "copy-device", 0.6), machine)
    assert finding.severity is Severity.NOTE
    assert "ECC is on" in finding.evidence


def test_without_ecc_or_with_hbm_it_is_no_explanation() -> None:
    without = changed(container(), gpus__0__ecc=False)
    for machine in (without, a100()):
        for finding in findings("HW024", giving(benched(machine), "copy-device", 0.6), machine):
            assert finding.severity is Severity.WARNING
            assert "ECC" not in finding.title


def test_slow_memory() -> None:
    machine = changed(a100(), gpus__5__clock_memory_mhz=405, gpus__5__clock_memory_max_mhz=1215)
    finding = only("HW024", giving(benched(machine), "copy-device", 0.4, ["cuda:5"]), machine)
    assert "memory at 405 of 1215 MHz" in finding.evidence
    assert "-i 5" in finding.cure.commands[0]


def test_silent_where_it_is_healthy() -> None:
    with_ecc = changed(container(), gpus__0__ecc=True)
    assert findings("HW024", benched(with_ecc), with_ecc) == ()
    assert findings("HW024", benched(a100()), a100()) == ()
    assert findings("HW024", giving(benched(a100()), "copy-device", 0.75), a100()) == ()


def test_half_of_the_lanes() -> None:
    machine = changed(a100(), gpus__0__pcie_width=8, gpus__all__pcie_generation=4)
    found = giving(benched(machine), PINNED, 0.42, ["cuda:0"])
    finding = only("HW031", found, machine)
    assert finding.severity is Severity.WARNING
    assert "8 of 16 PCIe lanes" in finding.title


def test_a_virtual_machine_cannot_change_it() -> None:
    narrow = {"gpus__0__pcie_width": 8, "gpus__0__pcie_generation": 4}
    machine = changed(a100(), **narrow, container__virtual_machine="kvm")
    found = giving(benched(machine), PINNED, 0.42, ["cuda:0"])
    assert only("HW031", found, machine).severity is Severity.NOTE


def test_silent_where_copies_are_fast() -> None:
    for link in ({"pcie_width": 8}, {"pcie_generation": 1}, {"pcie_generation": 4}):
        machine = changed(a100(), **{f"gpus__all__{name}": value for name, value in link.items()})
        assert findings("HW031", benched(machine), machine) == ()


def test_lanes_that_are_there_are_not_told() -> None:
    told = findings("HW031", giving(benched(a100()), PINNED, 0.4), a100())
    assert not any("lanes" in item.title for item in told)


def test_a_generation_that_stays_low_under_load() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=4, gpus__0__pcie_generation=3)
    found = giving(benched(machine), PINNED, 0.4, ["cuda:0"])
    finding = only("HW031", found, machine)
    assert finding.severity is Severity.WARNING
    assert "PCIe generation 3 of 4" in finding.title


def test_a_board_without_a_newer_one_is_a_note() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=3, gpus__all__pcie_generation_max=3)
    found = giving(benched(machine), PINNED, 0.4, ["cuda:0"])
    assert only("HW031", found, machine).severity is Severity.NOTE


def test_slow_without_a_cause_at_the_link() -> None:
    machine = changed(
        a100(), gpus__all__pcie_generation=4, gpus__0__numa_node=1, kernel__numa_nodes=2
    )
    finding = only("HW031", giving(benched(machine), PINNED, 0.3, ["cuda:0"]), machine)
    assert finding.severity is Severity.WARNING
    assert "2 NUMA nodes, the GPU is at node 1" in finding.evidence
    assert finding.cure.commands[0].startswith("numactl --cpunodebind=1")


def test_in_a_virtual_machine_it_is_a_note() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=4, container__virtual_machine="microsoft")
    finding = only("HW031", giving(benched(machine), PINNED, 0.3, ["cuda:0"]), machine)
    assert finding.severity is Severity.NOTE
    assert "virtual machine (microsoft)" in finding.evidence


def test_where_the_link_is_the_cause_that_alone_is_told() -> None:
    narrow = changed(a100(), gpus__all__pcie_generation=4, gpus__all__pcie_width=4)
    told = findings("HW031", giving(benched(narrow), PINNED, 0.2), narrow)
    assert {item.title.partition(", ")[2] for item in told} == {"4 of 16 PCIe lanes"}


def test_one_behind_the_others() -> None:
    machine = changed(a100(), gpus__6__throttles=("sw_thermal_slowdown",))
    finding = only("HW034", giving(benched(machine), "matmul-bf16", 0.7, ["cuda:6"]), machine)
    assert "GPU 6" in finding.title
    assert "81%" in finding.title
    assert "sw_thermal_slowdown" in finding.evidence


def test_told_once_by_the_worst_measurement() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.7, ["cuda:6"])
    found = giving(found, PINNED, 0.2, ["cuda:6"])
    assert "24%" in only("HW034", found, a100()).title


def test_silent_where_they_are_alike_or_of_different_kinds() -> None:
    assert findings("HW034", benched(a100()), a100()) == ()
    assert findings("HW034", giving(benched(a100()), "matmul-bf16", 0.8, ["cuda:6"]), a100()) == ()
    found = giving(benched(a100()), "matmul-bf16", 0.3, ["cuda:6"])
    other = tuple(
        dataclasses.replace(one, name="NVIDIA L4") if one.device == "cuda:6" else one
        for one in found.devices
    )
    assert findings("HW034", dataclasses.replace(found, devices=other), a100()) == ()
    assert findings("HW034", benched(workstation()), workstation()) == ()


def between(best: float, worst: float, datasheet: float | None = 300.0) -> Ceiling:
    points = (Point("cuda:0 to cuda:1", best), Point("cuda:2 to cuda:3", worst))
    name = "copy-device-to-device"
    return Ceiling(name, name, "cuda:0", best, "GB/s", datasheet, points[0].size, points)


def without_nvlink() -> Any:
    pairs = tuple(changed(pair, link="system") for pair in a100().gpu_pairs or ())
    return changed(a100(), gpu_pairs=pairs)


def test_one_pair_far_below_nvlink() -> None:
    finding = only("HW035", with_rows(benched(a100()), between(240.0, 22.0)), a100())
    assert "22 GB/s from cuda:2 to cuda:3" in finding.title
    assert "NVLink carries 300" in finding.evidence


def test_without_nvlink_a_copy_from_the_host_is_the_measure() -> None:
    machine = without_nvlink()
    finding = only("HW035", with_rows(benched(machine), between(20.0, 8.0)), machine)
    assert "a copy from the host gives 26.1 GB/s" in finding.evidence
    assert findings("HW035", with_rows(benched(machine), between(22.0, 18.0)), machine) == ()


def test_silent_where_all_pairs_are_fast_or_nothing_was_measured() -> None:
    assert findings("HW035", with_rows(benched(a100()), between(250.0, 240.0)), a100()) == ()
    assert findings("HW035", benched(a100()), a100()) == ()


@pytest.mark.parametrize("name", ["a100", "A100-SXM", "NVIDIA A100-SXM4-80GB"])
def test_silent_where_it_is_the_one(name: str) -> None:
    found = dataclasses.replace(benched(a100()), expected=name)
    assert findings("HW041", found, a100()) == ()


def test_another_one() -> None:
    found = dataclasses.replace(benched(a100()), expected="h100")
    finding = only("HW041", found, a100())
    assert finding.severity is Severity.ERROR
    assert finding.title.startswith("expected h100, found NVIDIA A100")


def test_none_at_all() -> None:
    found = dataclasses.replace(benched(cpu_server()), expected="h100")
    assert "no GPU" in only("HW041", found, cpu_server()).title


def test_silent_where_nothing_is_expected() -> None:
    assert findings("HW041", benched(a100()), a100()) == ()


def test_others_at_work() -> None:
    found = dataclasses.replace(benched(SERVER), busy=0.63)
    finding = only("HW027", found, SERVER)
    assert finding.severity is Severity.NOTE
    assert finding.title == "other programs used 63% of the cores"


def test_silent_where_it_is_quiet_unknown_or_not_ours() -> None:
    for busy in (None, 0.0, 0.1):
        found = dataclasses.replace(benched(SERVER), busy=busy)
        assert findings("HW027", found, SERVER) == ()
    part = changed(SERVER, cpu__cores=4)
    assert findings("HW027", dataclasses.replace(benched(part), busy=0.9), part) == ()


def test_what_is_told_here_is_a_share() -> None:
    busy = benching.cores_busy(0.05)
    assert busy is not None
    assert 0 <= busy <= 1
