from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Xid
from machines.healthy import changed, h100

ID = "xid-errors"


def logged(*errors: Xid) -> Any:
    return changed(h100(), kernel__xids=errors)


def test_a_fault_of_the_program_is_a_note() -> None:
    finding = only(ID, logged(Xid(31, "0000:22:00", 3, "31, pid=7, MMU Fault")))
    assert (finding.code, finding.severity) == ("HW008", Severity.NOTE)
    assert finding.title.startswith("Xid 31, 3 times: illegal memory access")
    assert "H100 80GB HBM3 (GPU 1), 3 x: 31, pid=7, MMU Fault" in finding.evidence
    assert "compute-sanitizer" in commands(finding)
    assert "reset" not in commands(finding)


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_a_fault_of_the_hardware_is_an_error_with_commands(number: int) -> None:
    finding = only(ID, logged(Xid(number, "0000:21:00.0")))
    assert finding.severity is Severity.ERROR
    assert finding.cure.commands
    assert "once" in finding.title


def test_the_right_gpu_is_reset() -> None:
    finding = only(ID, logged(Xid(48, "0000:24:00"), Xid(48, "0000:26:00")))
    assert "sudo nvidia-smi -i 3,5 --gpu-reset" in commands(finding)
    assert "2 times" in finding.title


def test_nvlink_needs_all_gpus_reset() -> None:
    finding = only(ID, logged(Xid(74, "0000:24:00")))
    assert finding.cure.commands[0] == "sudo nvidia-smi --gpu-reset"


def test_an_unknown_number_says_where_to_look_it_up() -> None:
    finding = only(ID, logged(Xid(999)))
    assert finding.severity is Severity.WARNING
    assert "https://docs.nvidia.com/deploy/xid-errors/" in finding.cure.text
    assert "an unknown address" in finding.evidence


def test_one_finding_per_number() -> None:
    errors = (Xid(13, "0000:21:00"), Xid(13, "0000:22:00"), Xid(79, "0000:21:00"))
    assert [item.title.partition(",")[0] for item in findings(ID, logged(*errors))] == [
        "Xid 79",
        "Xid 13",
    ]
