from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "copies-on-old-generation"


NAME = "copy-host-to-device-pinned"


def test_a_generation_that_stays_low_under_load() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=4, gpus__0__pcie_generation=3)
    found = giving(benched(machine), NAME, 0.4, ["cuda:0"])
    finding = only(ID, found, machine)
    assert (finding.code, finding.severity) == ("HW032", Severity.WARNING)
    assert "PCIe generation 3 of 4" in finding.title
    assert "HW033" not in codes(found, machine)


def test_a_board_without_a_newer_one_is_a_note() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=3, gpus__all__pcie_generation_max=3)
    found = giving(benched(machine), NAME, 0.4, ["cuda:0"])
    assert only(ID, found, machine).severity is Severity.NOTE


def test_silent_where_copies_are_fast() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=1)
    assert findings(ID, benched(machine), machine) == ()
