"""GPUs that are held back or broken: links, clocks, heat, memory and Xid errors."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Xid
from machines import broken_ordinary
from machines.healthy import a100, changed, gpu, h100, laptop, rocm, workstation


def test_half_of_the_lanes() -> None:
    finding = only("HW001", changed(workstation(), gpus__0__pcie_width=4))
    assert finding.severity is Severity.WARNING
    assert "4 of 16" in finding.title
    assert "x4 of x16, generation 4: 7.9 of 31.5 GB/s" in finding.evidence
    assert "lspci -vv -s 0000:21:00.0" in commands(finding)


def test_two_cards_on_a_consumer_board_are_a_note() -> None:
    two = changed(workstation(), gpus=(gpu(0, pcie_width=8), gpu(1, pcie_width=8)))
    finding = only("HW001", two)
    assert finding.severity is Severity.NOTE
    assert "2 GPUs (0, 1)" in finding.title
    four = changed(workstation(), gpus=(gpu(0), gpu(1, pcie_width=4)))
    assert only("HW001", four).severity is Severity.WARNING, "x4 is no fair share"


def test_what_cannot_be_changed_is_a_note() -> None:
    mobile = only("HW001", changed(laptop(), gpus__0__pcie_width=4))
    assert mobile.severity is Severity.NOTE
    assert "laptop" in mobile.cure.text
    rented = only(
        "HW001", changed(workstation(), gpus__0__pcie_width=8, container__virtual_machine="kvm")
    )
    assert rented.severity is Severity.NOTE
    assert "provider" in rented.cure.text


def test_of_an_unknown_generation_no_speed_is_told() -> None:
    facts = {"gpus__0__pcie_width": 8, "gpus__0__pcie_generation_max": None}
    assert "GB/s" not in only("HW001", changed(workstation(), **facts)).evidence


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


def test_an_older_slot() -> None:
    finding = only("HW001", changed(workstation(), gpus__0__pcie_generation_max=3))
    assert finding.severity is Severity.WARNING
    assert "PCIe 3 where the card can do 4" in finding.title
    assert "15.8 of 31.5 GB/s" in finding.evidence


def test_an_idle_link_is_not_a_slow_one() -> None:
    assert workstation().gpus is not None
    idle = changed(workstation(), gpus__0__pcie_generation=1)
    assert findings("HW001", idle) == ()


def test_the_data_sheet_stands_in_for_the_driver() -> None:
    facts = {"gpus__0__pcie_generation_max": 3, "gpus__0__pcie_generation_card": None}
    assert "the card 4" in only("HW001", changed(workstation(), **facts)).evidence
    unknown = changed(workstation(), gpus__0__name="NVIDIA GeForce RTX 9999", **facts)
    assert findings("HW001", unknown) == ()


def test_all_of_a_node() -> None:
    finding = only("HW003", changed(a100(), gpus__all__power_limit_w=300.0))
    assert finding.severity is Severity.WARNING
    assert finding.title == "8 GPUs (0-7): power limit at 75% of the default"
    assert "limit 300 W, default 400 W" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0,1,2,3,4,5,6,7 -pl 400",)


def test_a_limit_is_lowered_by_a_twentieth_and_set_to_each_cards_default() -> None:
    assert only("HW003", changed(workstation(), gpus__0__power_limit_w=427.0))
    facts = {"gpus__all__power_limit_w": 200.0, "gpus__1__power_limit_default_w": 300.0}
    two = only("HW003", changed(workstation(), gpus=(gpu(0), gpu(1)), **facts))
    assert [line[-6:] for line in two.cure.commands] == ["pl 450", "pl 300"]


def test_amd() -> None:
    facts = {"gpus__all__power_limit_default_w": 750.0, "gpus__2__power_limit_w": 400.0}
    finding = only("HW003", changed(rocm(), **facts))
    assert finding.cure.commands == ("sudo rocm-smi -d 2 --resetpoweroverdrive",)


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


def test_a_slowdown_without_heat_is_one_of_power() -> None:
    assert only("HW003", changed(workstation(), gpus__0__throttles=("hw_slowdown",)))


def test_a_slowdown_by_heat_is_not() -> None:
    reasons = ("hw_slowdown", "hw_thermal_slowdown")
    found = only("HW003", changed(workstation(), gpus__0__throttles=reasons))
    assert found.title.endswith("by heat now")


def test_a_workstation_has_no_management_controller() -> None:
    finding = only("HW003", changed(workstation(), gpus__0__throttles=("hw_power_brake_slowdown",)))
    assert "ipmitool" not in commands(finding)


def test_a_setting_as_the_reason() -> None:
    facts = {"gpus__0__throttles": ("applications_clocks_setting",)}
    finding = only("HW003", changed(a100(), **facts))
    assert finding.severity is Severity.WARNING
    assert "applications_clocks_setting, 210 MHz now, 1410 MHz at most" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 0 -rgc", "sudo nvidia-smi -i 0 -rac")


def test_behind_its_sisters() -> None:
    finding = only("HW003", changed(a100(), gpus__6__clock_sm_max_mhz=1200))
    assert "GPU 6" in finding.title
    assert "its peers 1410 MHz" in finding.evidence


def test_another_model_is_no_sister() -> None:
    other = gpu(1, name="NVIDIA GeForce RTX 3090", clock_sm_max_mhz=2100)
    assert findings("HW003", changed(workstation(), gpus=(gpu(0), other))) == ()


@pytest.mark.parametrize("reason", ["sw_thermal_slowdown", "hw_thermal_slowdown"])
def test_heat_as_a_reason(reason: str) -> None:
    facts = {"gpus__0__throttles": (reason,), "gpus__0__temperature_c": 91}
    finding = only("HW003", changed(workstation(), **facts))
    assert finding.severity is Severity.WARNING
    assert f"{reason}, 91 C, slowdown at 90 C, 210 of 3105 MHz" in finding.evidence
    assert "temperature.gpu" in commands(finding)


def test_other_reasons_are_no_heat() -> None:
    facts = {"gpus__0__throttles": ("sw_power_cap", "gpu_idle", "hw_power_brake_slowdown")}
    assert "by the power supply" in only("HW003", changed(workstation(), **facts)).title


def test_unknown_temperatures_are_not_told() -> None:
    facts = {
        "gpus__0__throttles": ("sw_thermal_slowdown",),
        "gpus__0__temperature_c": None,
        "gpus__0__temperature_slowdown_c": None,
    }
    assert " C" not in only("HW003", changed(workstation(), **facts)).evidence


def test_close_to_the_slowdown() -> None:
    facts = {"gpus__0__temperature_c": 87, "gpus__0__power_w": 440.0}
    finding = only("HW003", changed(workstation(), **facts))
    assert finding.severity is Severity.WARNING
    assert "87 C, slowdown at 90 C, 440 W, load 0%" in finding.evidence
    assert "sudo nvidia-smi -i 0 -pl 382" in commands(finding)


def test_a_laptop_refuses_another_power_limit() -> None:
    assert only("HW003", changed(laptop(), gpus__0__temperature_c=88)).cure.commands == ()


def test_one_that_throttles_already_is_not_nearly_too_hot() -> None:
    facts = {"gpus__0__temperature_c": 91, "gpus__0__throttles": ("hw_thermal_slowdown",)}
    assert only("HW003", changed(workstation(), **facts)).title.endswith("by heat now")
    assert findings("HW003", changed(workstation(), gpus__0__temperature_c=84)) == ()


def test_a_gpu_that_throttles_hides_this_note_of_another() -> None:
    facts = {
        "gpus__0__throttles": ("hw_thermal_slowdown",),
        "gpus__1__temperature_c": 86,
    }
    assert [item.code for item in diagnose(changed(h100(), **facts))] == ["HW003"]


def test_present_errors() -> None:
    facts = {"gpus__1__ecc_uncorrected": 2, "gpus__1__ecc_uncorrected_lifetime": 5}
    finding = only("HW006", changed(a100(), **facts))
    assert finding.severity is Severity.ERROR
    assert "2 since the driver was loaded, 5 in its lifetime" in finding.evidence
    assert "sudo nvidia-smi -i 1 --gpu-reset" in commands(finding)


def test_past_errors_are_a_note() -> None:
    finding = only("HW006", changed(a100(), gpus__4__ecc_uncorrected_lifetime=1))
    assert finding.severity is Severity.NOTE
    assert "in the past" in finding.title


def test_both_are_two_findings() -> None:
    facts = {"gpus__1__ecc_uncorrected": 2, "gpus__4__ecc_uncorrected_lifetime": 1}
    assert len(findings("HW006", changed(a100(), **facts))) == 2


def test_waiting_for_a_reset() -> None:
    finding = only("HW006", changed(a100(), gpus__5__retirement_pending=True))
    assert finding.severity is Severity.WARNING
    assert "wait for a reset" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 5 --gpu-reset",)


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


def test_a_fault_of_the_program_is_a_note() -> None:
    finding = only("HW008", logged(Xid(31, "0000:22:00", 3, "31, pid=7, MMU Fault")))
    assert finding.severity is Severity.NOTE
    assert finding.title.startswith("Xid 31, 3 times: illegal memory access")
    assert "H100 80GB HBM3 (GPU 1), 3 x: 31, pid=7, MMU Fault" in finding.evidence
    assert "compute-sanitizer" in commands(finding)
    assert "reset" not in commands(finding)


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_a_fault_of_the_hardware_is_an_error_with_commands(number: int) -> None:
    finding = only("HW008", logged(Xid(number, "0000:21:00.0")))
    assert finding.severity is Severity.ERROR
    assert finding.cure.commands
    assert "once" in finding.title


def test_the_right_gpu_is_reset() -> None:
    finding = only("HW008", logged(Xid(48, "0000:24:00"), Xid(48, "0000:26:00")))
    assert "sudo nvidia-smi -i 3,5 --gpu-reset" in commands(finding)
    assert "2 times" in finding.title


def test_nvlink_needs_all_gpus_reset() -> None:
    finding = only("HW008", logged(Xid(74, "0000:24:00")))
    assert finding.cure.commands[0] == "sudo nvidia-smi --gpu-reset"


def test_an_unknown_number_says_where_to_look_it_up() -> None:
    finding = only("HW008", logged(Xid(999)))
    assert finding.severity is Severity.WARNING
    assert "https://docs.nvidia.com/deploy/xid-errors/" in finding.cure.text
    assert "an unknown address" in finding.evidence


def test_one_finding_per_number() -> None:
    errors = (Xid(13, "0000:21:00"), Xid(13, "0000:22:00"), Xid(79, "0000:21:00"))
    assert [item.title.partition(",")[0] for item in findings("HW008", logged(*errors))] == [
        "Xid 79",
        "Xid 13",
    ]


def test_some_of_its_connections() -> None:
    finding = only("HW016", changed(h100(), gpus__4__nvlinks=16, gpus__4__nvlinks_down=2))
    assert finding.severity is Severity.ERROR
    assert "H100 80GB HBM3 (GPU 4): 2 down, 16 up" in finding.evidence
    assert "nvidia-smi nvlink -s -i 4" in commands(finding)


def test_all_of_its_connections_where_its_sisters_have_theirs() -> None:
    finding = only("HW016", changed(a100(), gpus__0__nvlinks=0, gpus__0__nvlinks_down=12))
    assert "12 down, 0 up" in finding.evidence


def test_cards_that_lack_the_bridge_are_fine() -> None:
    facts = {"gpus__all__nvlinks": 0, "gpus__all__nvlinks_down": 4}
    assert findings("HW016", changed(workstation(), **facts)) == ()


SILENT: dict[str, list[Any]] = {
    "HW003": [
        # silent within five percent
        changed(workstation(), gpus__0__power_limit_w=430.0),
        changed(workstation(), gpus__0__power_limit_w=600.0),
    ],
    "HW006": [
        # some retired pages are ordinary
        changed(a100(), gpus__2__retired_pages=3),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
