"""GPUs that are held back or broken: links, clocks, heat, memory and Xid errors."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Xid
from machines import broken_ordinary
from machines.healthy import a100, changed, gpu, h100, laptop, rocm, workstation


def test_two_cards_on_a_consumer_board_are_a_note() -> None:
    two = changed(workstation(), gpus=(gpu(0, pcie_width=8), gpu(1, pcie_width=8)))
    finding = only("HW001", two)
    assert finding.severity is Severity.NOTE
    assert "2 GPUs (0, 1)" in finding.title
    four = changed(workstation(), gpus=(gpu(0), gpu(1, pcie_width=4)))
    assert only("HW001", four).severity is Severity.WARNING, "x4 is no fair share"


def test_the_data_sheet_knows_the_lanes_that_the_slot_hides() -> None:
    """NVML's maximum is that of card and slot together."""
    facts = {"gpus__0__pcie_width": 8, "gpus__0__pcie_width_max": 8}
    assert "x8 of x16" in only("HW001", changed(workstation(), **facts)).evidence
    narrow_card = changed(workstation(), gpus__0__name="NVIDIA GeForce RTX 4060", **facts)
    assert findings("HW001", narrow_card) == (), "sold with eight lanes"


def test_a_chip_joined_to_its_processor_has_no_such_link() -> None:
    chip = broken_ordinary.dgx_spark()
    assert findings("HW001", chip) == ()
    assert findings("HW001", changed(chip, gpus__0__name="NVIDIA GH200 480GB")) == ()
    assert len(findings("HW001", changed(chip, gpus__0__name="NVIDIA H100 PCIe"))) == 2, (
        "lanes and generation"
    )


def test_an_idle_link_is_not_a_slow_one() -> None:
    assert workstation().gpus is not None
    idle = changed(workstation(), gpus__0__pcie_generation=1)
    assert findings("HW001", idle) == ()


def test_the_data_sheet_stands_in_for_the_driver() -> None:
    facts = {"gpus__0__pcie_generation_max": 3, "gpus__0__pcie_generation_card": None}
    assert "the card 4" in only("HW001", changed(workstation(), **facts)).evidence
    unknown = changed(workstation(), gpus__0__name="NVIDIA GeForce RTX 9999", **facts)
    assert findings("HW001", unknown) == ()


def test_a_limit_is_lowered_by_a_twentieth_and_set_to_each_cards_default() -> None:
    assert only("HW003", changed(workstation(), gpus__0__power_limit_w=427.0))
    facts = {"gpus__all__power_limit_w": 200.0, "gpus__1__power_limit_default_w": 300.0}
    two = only("HW003", changed(workstation(), gpus=(gpu(0), gpu(1)), **facts))
    assert [line[-6:] for line in two.cure.commands] == ["pl 450", "pl 300"]


def test_a_laptop_on_battery_is_a_note() -> None:
    finding = only("HW003", changed(laptop(), gpus__0__power_limit_w=35.0))
    assert finding.severity is Severity.NOTE
    assert finding.cure.commands == ()
    assert "Plug" in finding.cure.text


@pytest.mark.parametrize(
    "reasons", [("hw_power_brake_slowdown",), ("hw_slowdown", "hw_power_brake_slowdown")]
)
def test_the_brake(reasons: tuple[str, ...]) -> None:
    finding = only("HW003", changed(h100(), gpus__2__throttles=reasons))
    assert finding.severity is Severity.WARNING
    assert "hw_power_brake_slowdown" in finding.evidence
    assert "sudo ipmitool sdr type 'Power Supply'" in commands(finding)


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
def test_heat_as_a_reason(reason: str) -> None:
    facts = {"gpus__0__throttles": (reason,), "gpus__0__temperature_c": 91}
    finding = only("HW003", changed(workstation(), **facts))
    assert finding.severity is Severity.WARNING
    assert f"{reason}, 91 C, slowdown at 90 C, 210 of 3105 MHz" in finding.evidence
    assert "temperature.gpu" in commands(finding)


def test_both_are_two_findings() -> None:
    facts = {"gpus__1__ecc_uncorrected": 2, "gpus__4__ecc_uncorrected_lifetime": 1}
    assert len(findings("HW006", changed(a100(), **facts))) == 2


@pytest.mark.parametrize(
    "facts", [{"gpus__2__row_remap_failed": True}, {"gpus__2__retired_pages": 62}]
)
def test_beyond_repair(facts: dict[str, object]) -> None:
    finding = only("HW006", changed(a100(), gpus__2__retirement_pending=True, **facts))
    assert finding.severity is Severity.ERROR
    assert "GPU 2" in finding.title
    assert "nvidia-bug-report.sh" in commands(finding)


def logged(*errors: Xid) -> Any:
    return changed(h100(), kernel__xids=errors)


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_a_fault_of_the_hardware_is_an_error_with_commands(number: int) -> None:
    finding = only("HW008", logged(Xid(number, "0000:21:00.0")))
    assert finding.severity is Severity.ERROR
    assert finding.cure.commands
    assert "once" in finding.title


def test_one_finding_per_number() -> None:
    errors = (Xid(13, "0000:21:00"), Xid(13, "0000:22:00"), Xid(79, "0000:21:00"))
    assert [item.title.partition(",")[0] for item in findings("HW008", logged(*errors))] == [
        "Xid 79",
        "Xid 13",
    ]


TOLD = [
    told("half of the lanes", "HW001",
         changed(workstation(), gpus__0__pcie_width=4), "4 of 16",
         "x4 of x16, generation 4: 7.9 of 31.5 GB/s", "lspci -vv -s 0000:21:00.0",
         severity=Severity.WARNING),
    told("what cannot be changed is a note", "HW001",
         changed(laptop(), gpus__0__pcie_width=4), "laptop", severity=Severity.NOTE),
    told("what cannot be changed is a note: 2", "HW001",
         changed(workstation(), gpus__0__pcie_width=8, container__virtual_machine="kvm"),
         "provider", severity=Severity.NOTE),
    told("of an unknown generation no speed is told", "HW001",
         changed(workstation(), gpus__0__pcie_width=8, gpus__0__pcie_generation_max=None),
         never=("GB/s",)),
    told("an older slot", "HW001",
         changed(workstation(), gpus__0__pcie_generation_max=3), "PCIe 3 where the card can do 4",
         "15.8 of 31.5 GB/s", severity=Severity.WARNING),
    told("all of a node", "HW003",
         changed(a100(), gpus__all__power_limit_w=300.0),
         "8 GPUs (0-7): power limit at 75% of the default", "limit 300 W, default 400 W",
         "sudo nvidia-smi -i 0,1,2,3,4,5,6,7 -pl 400", severity=Severity.WARNING),
    told("amd", "HW003",
         changed(rocm(), gpus__all__power_limit_default_w=750.0, gpus__2__power_limit_w=400.0),
         "sudo rocm-smi -d 2 --resetpoweroverdrive"),
    told("a slowdown without heat is one of power", "HW003",
         changed(workstation(), gpus__0__throttles=("hw_slowdown",))),
    told("a slowdown by heat is not", "HW003",
         changed(workstation(), gpus__0__throttles=("hw_slowdown", "hw_thermal_slowdown")),
         "by heat now"),
    told("a workstation has no management controller", "HW003",
         changed(workstation(), gpus__0__throttles=("hw_power_brake_slowdown",)),
         never=("ipmitool",)),
    told("a setting as the reason", "HW003",
         changed(a100(), gpus__0__throttles=("applications_clocks_setting",)),
         "applications_clocks_setting, 210 MHz now, 1410 MHz at most", "sudo nvidia-smi -i 0 -rgc",
         "sudo nvidia-smi -i 0 -rac", severity=Severity.WARNING),
    told("behind its sisters", "HW003",
         changed(a100(), gpus__6__clock_sm_max_mhz=1200), "GPU 6", "its peers 1410 MHz"),
    told("other reasons are no heat", "HW003",
         changed(workstation(),
         gpus__0__throttles=("sw_power_cap", "gpu_idle", "hw_power_brake_slowdown")),
         "by the power supply"),
    told("unknown temperatures are not told", "HW003",
         changed(workstation(), gpus__0__throttles=("sw_thermal_slowdown",),
         gpus__0__temperature_c=None, gpus__0__temperature_slowdown_c=None), never=(" C",)),
    told("present errors", "HW006",
         changed(a100(), gpus__1__ecc_uncorrected=2, gpus__1__ecc_uncorrected_lifetime=5),
         "2 since the driver was loaded, 5 in its lifetime", "sudo nvidia-smi -i 1 --gpu-reset",
         severity=Severity.ERROR),
    told("past errors are a note", "HW006",
         changed(a100(), gpus__4__ecc_uncorrected_lifetime=1), "in the past",
         severity=Severity.NOTE),
    told("waiting for a reset", "HW006",
         changed(a100(), gpus__5__retirement_pending=True), "wait for a reset",
         "sudo nvidia-smi -i 5 --gpu-reset", severity=Severity.WARNING),
    told("a fault of the program is a note", "HW008",
         logged(Xid(31, "0000:22:00", 3, "31, pid=7, MMU Fault")),
         "Xid 31, 3 times: illegal memory access",
         "H100 80GB HBM3 (GPU 1), 3 x: 31, pid=7, MMU Fault", "compute-sanitizer",
         severity=Severity.NOTE, never=("reset",)),
    told("the right gpu is reset", "HW008",
         logged(Xid(48, "0000:24:00"), Xid(48, "0000:26:00")), "sudo nvidia-smi -i 3,5 --gpu-reset",
         "2 times"),
    told("nvlink needs all gpus reset", "HW008",
         logged(Xid(74, "0000:24:00")), "sudo nvidia-smi --gpu-reset"),
    told("an unknown number says where to look it up", "HW008",
         logged(Xid(999)), "https://docs.nvidia.com/deploy/xid-errors/", "an unknown address",
         severity=Severity.WARNING),
    told("some of its connections", "HW016",
         changed(h100(), gpus__4__nvlinks=16, gpus__4__nvlinks_down=2),
         "H100 80GB HBM3 (GPU 4): 2 down, 16 up", "nvidia-smi nvlink -s -i 4",
         severity=Severity.ERROR),
    told("all of its connections where its sisters have theirs", "HW016",
         changed(a100(), gpus__0__nvlinks=0, gpus__0__nvlinks_down=12), "12 down, 0 up"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "HW003": [
        # another model is no sister
        changed(
            workstation(),
            gpus=(gpu(0), gpu(1, name="NVIDIA GeForce RTX 3090", clock_sm_max_mhz=2100)),
        ),
        # hot, and not slower
        changed(workstation(), gpus__0__temperature_c=88),
        # silent within five percent
        changed(workstation(), gpus__0__power_limit_w=430.0),
        changed(workstation(), gpus__0__power_limit_w=600.0),
    ],
    "HW006": [
        # some retired pages are ordinary
        changed(a100(), gpus__2__retired_pages=3),
    ],
    "HW016": [
        # cards that lack the bridge are fine
        changed(workstation(), gpus__all__nvlinks=0, gpus__all__nvlinks_down=4),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
