from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import GIB, changed, mac, workstation

ID = "swap-in-use"
FULL = {"memory__swap_used_bytes": 2 * GIB, "memory__available_bytes": 3 * GIB}


def test_swapping_with_a_full_memory() -> None:
    finding = only(ID, changed(workstation(), **FULL))
    assert (finding.code, finding.severity) == ("ENV065", Severity.WARNING)
    assert "swap used 2.0 GiB of 8.0 GiB" in finding.evidence
    assert "available 3.0 GiB of 64 GiB" in finding.evidence
    assert "swapoff" not in commands(finding), "what is swapped out would not fit"


def test_much_left_in_swap_is_a_note_and_can_be_brought_back() -> None:
    finding = only(ID, changed(workstation(), memory__swap_used_bytes=7 * GIB))
    assert finding.severity is Severity.NOTE
    assert "sudo swapoff -a" in commands(finding)


def test_macos_swaps_by_habit() -> None:
    assert findings(ID, changed(mac(), memory__swap_used_bytes=7 * GIB)) == ()
    assert only(ID, changed(mac(), **FULL)).severity is Severity.WARNING


def test_silent_for_little() -> None:
    little = {"memory__swap_used_bytes": GIB // 4, "memory__available_bytes": GIB}
    assert findings(ID, changed(workstation(), **little)) == ()
    assert findings(ID, changed(workstation(), memory__swap_used_bytes=GIB)) == ()
