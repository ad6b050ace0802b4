from __future__ import annotations

from diagnosing.ceilings.benched import benched, findings, giving, only
from machines.healthy import a100, changed

ID = "device-memory-below-data-sheet"


def test_slow_memory() -> None:
    machine = changed(a100(), gpus__5__clock_memory_mhz=405, gpus__5__clock_memory_max_mhz=1215)
    finding = only(ID, giving(benched(machine), "copy-device", 0.4, ["cuda:5"]), machine)
    assert finding.code == "HW030"
    assert "memory at 405 of 1215 MHz" in finding.evidence
    assert "-i 5" in finding.cure.commands[0]


def test_silent_where_it_is_healthy() -> None:
    assert findings(ID, benched(a100()), a100()) == ()
    assert findings(ID, giving(benched(a100()), "copy-device", 0.75), a100()) == ()
