from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines import broken_ordinary
from machines.healthy import changed, gpu, laptop, workstation

ID = "pcie-link-narrow"


def test_half_of_the_lanes() -> None:
    finding = only(ID, changed(workstation(), gpus__0__pcie_width=4))
    assert (finding.code, finding.severity) == ("HW001", Severity.WARNING)
    assert "4 of 16" in finding.title
    assert "x4 of x16, generation 4: 7.9 of 31.5 GB/s" in finding.evidence
    assert "lspci -vv -s 0000:21:00.0" in commands(finding)


def test_two_cards_on_a_consumer_board_are_a_note() -> None:
    two = changed(workstation(), gpus=(gpu(0, pcie_width=8), gpu(1, pcie_width=8)))
    finding = only(ID, two)
    assert finding.severity is Severity.NOTE
    assert "2 GPUs (0, 1)" in finding.title
    four = changed(workstation(), gpus=(gpu(0), gpu(1, pcie_width=4)))
    assert only(ID, four).severity is Severity.WARNING, "x4 is no fair share"


def test_what_cannot_be_changed_is_a_note() -> None:
    mobile = only(ID, changed(laptop(), gpus__0__pcie_width=4))
    assert mobile.severity is Severity.NOTE
    assert "laptop" in mobile.cure.text
    rented = only(
        ID, changed(workstation(), gpus__0__pcie_width=8, container__virtual_machine="kvm")
    )
    assert rented.severity is Severity.NOTE
    assert "provider" in rented.cure.text


def test_of_an_unknown_generation_no_speed_is_told() -> None:
    facts = {"gpus__0__pcie_width": 8, "gpus__0__pcie_generation_max": None}
    assert "GB/s" not in only(ID, changed(workstation(), **facts)).evidence


def test_the_data_sheet_knows_the_lanes_that_the_slot_hides() -> None:
    """NVML's maximum is that of card and slot together."""
    facts = {"gpus__0__pcie_width": 8, "gpus__0__pcie_width_max": 8}
    assert "x8 of x16" in only(ID, changed(workstation(), **facts)).evidence
    narrow_card = changed(workstation(), gpus__0__name="NVIDIA GeForce RTX 4060", **facts)
    assert findings(ID, narrow_card) == (), "sold with eight lanes"


def test_a_chip_joined_to_its_processor_has_no_such_link() -> None:
    chip = broken_ordinary.dgx_spark()
    assert findings(ID, chip) == ()
    assert findings(ID, changed(chip, gpus__0__name="NVIDIA GH200 480GB")) == ()
    assert len(findings(ID, changed(chip, gpus__0__name="NVIDIA H100 PCIe"))) == 1
