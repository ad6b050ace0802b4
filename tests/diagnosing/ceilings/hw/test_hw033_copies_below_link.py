from __future__ import annotations

from diagnosing.ceilings.benched import benched, findings, giving, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "copies-below-link"


NAME = "copy-host-to-device-pinned"


def test_slow_without_a_cause_at_the_link() -> None:
    machine = changed(
        a100(), gpus__all__pcie_generation=4, gpus__0__numa_node=1, kernel__numa_nodes=2
    )
    finding = only(ID, giving(benched(machine), NAME, 0.3, ["cuda:0"]), machine)
    assert (finding.code, finding.severity) == ("HW033", Severity.WARNING)
    assert "2 NUMA nodes, the GPU is at node 1" in finding.evidence
    assert finding.cure.commands[0].startswith("numactl --cpunodebind=1")


def test_in_a_virtual_machine_it_is_a_note() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=4, container__virtual_machine="microsoft")
    finding = only(ID, giving(benched(machine), NAME, 0.3, ["cuda:0"]), machine)
    assert finding.severity is Severity.NOTE
    assert "virtual machine (microsoft)" in finding.evidence


def test_silent_where_copies_are_fast_or_the_link_is_the_cause() -> None:
    machine = changed(a100(), gpus__all__pcie_generation=4)
    assert findings(ID, benched(machine), machine) == ()
    narrow = changed(machine, gpus__all__pcie_width=4)
    assert findings(ID, giving(benched(narrow), NAME, 0.2), narrow) == ()
