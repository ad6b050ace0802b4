from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "copies-on-few-lanes"


NAME = "copy-host-to-device-pinned"


def test_half_of_the_lanes() -> None:
    machine = changed(a100(), gpus__0__pcie_width=8, gpus__all__pcie_generation=4)
    found = giving(benched(machine), NAME, 0.42, ["cuda:0"])
    finding = only(ID, found, machine)
    assert (finding.code, finding.severity) == ("HW031", Severity.WARNING)
    assert "8 of 16 PCIe lanes" in finding.title
    assert "HW033" not in codes(found, machine)


def test_a_virtual_machine_cannot_change_it() -> None:
    machine = changed(a100(), gpus__0__pcie_width=8, container__virtual_machine="kvm")
    found = giving(benched(machine), NAME, 0.42, ["cuda:0"])
    assert only(ID, found, machine).severity is Severity.NOTE


def test_silent_where_copies_are_fast_or_all_lanes_are_there() -> None:
    machine = changed(a100(), gpus__all__pcie_width=8)
    assert findings(ID, benched(machine), machine) == ()
    assert findings(ID, giving(benched(a100()), NAME, 0.4), a100()) == ()
