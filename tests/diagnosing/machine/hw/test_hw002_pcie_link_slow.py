from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines import broken_ordinary
from machines.healthy import changed, workstation

ID = "pcie-link-slow"


def test_an_older_slot() -> None:
    finding = only(ID, changed(workstation(), gpus__0__pcie_generation_max=3))
    assert (finding.code, finding.severity) == ("HW002", Severity.WARNING)
    assert "PCIe 3 where the card can do 4" in finding.title
    assert "15.8 of 31.5 GB/s" in finding.evidence


def test_an_idle_link_is_not_a_slow_one() -> None:
    assert workstation().gpus is not None
    idle = changed(workstation(), gpus__0__pcie_generation=1)
    assert findings(ID, idle) == ()


def test_the_data_sheet_stands_in_for_the_driver() -> None:
    facts = {"gpus__0__pcie_generation_max": 3, "gpus__0__pcie_generation_card": None}
    assert "the card 4" in only(ID, changed(workstation(), **facts)).evidence
    unknown = changed(workstation(), gpus__0__name="NVIDIA GeForce RTX 9999", **facts)
    assert findings(ID, unknown) == ()


def test_a_chip_joined_to_its_processor_has_no_such_link() -> None:
    chip = broken_ordinary.dgx_spark()
    assert findings(ID, chip) == ()
    assert len(findings(ID, changed(chip, gpus__0__name="NVIDIA H100 PCIe"))) == 1
