from __future__ import annotations

from flatout.diagnosing.machine.env import env017_gpu_lost as checked
from flatout.nouns.finding import Severity
from machines import broken_driver, broken_shared
from machines.breaking import bus_only
from machines.healthy import changed, workstation


def test_one_of_eight_is_gone() -> None:
    (found,) = checked.check(broken_driver.fallen_off())
    assert found.title == "the driver lists 7 of 8 NVIDIA GPUs"
    assert "0000:28:00.0" in found.evidence
    assert "Xid 79" in found.evidence
    assert "lspci -s 0000:28:00.0 -vv" in found.cure.commands


def test_errors_of_other_gpus_are_not_its_own() -> None:
    other = changed(broken_driver.fallen_off(), kernel__xids__0__pci_address="0000:21:00")
    (found,) = checked.check(other)
    assert "Xid" not in found.evidence


def test_reserved_for_a_virtual_machine() -> None:
    (found,) = checked.check(broken_driver.passed_through())
    assert found.severity is Severity.NOTE
    assert "vfio-pci" in found.title
    assert any("driver_override" in line for line in found.cure.commands)
    alone = changed(
        broken_driver.passed_through(), gpus=broken_driver.passed_through().gpus_of("nvidia")[1:]
    )
    assert [item.severity for item in checked.check(alone)] == [None]


def test_too_old_for_the_driver() -> None:
    old = bus_only(pci_id="10de:1b80", pci_address="0000:41:00.0")
    whole = workstation()
    both = changed(whole, gpus=(*(whole.gpus or ()), old), drivers__0__kernel_version="590.44.01")
    (found,) = checked.check(both)
    assert "580" in found.cure.text


def test_silent_where_none_or_all_are_missing() -> None:
    broken = broken_driver.fallen_off()
    silent = [
        workstation(),
        broken_driver.no_driver(),
        broken_driver.docker_without_gpu(),
        changed(broken, container__kind="docker"),
        changed(broken, gpus__7__driver_sees=None),
        changed(broken, gpus__7__kernel_driver="nouveau"),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)


def test_gpus_of_other_jobs_are_not_lost() -> None:
    assert list(checked.check(broken_shared.job_with_one_gpu())) == []
    one_more = changed(
        broken_shared.job_with_one_gpu(),
        kernel__device_files=broken_shared.withheld(2, 3, 4, 5, 6, 7),
    )
    assert len(list(checked.check(one_more))) == 1
