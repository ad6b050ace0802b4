from __future__ import annotations

from diagnosing.ceilings.benched import benched, cpu_row, findings, only, with_rows
from machines.healthy import changed, workstation

ID = "main-memory-slow"


SLOW, FAST = cpu_row("memory-cpu", 14.0), cpu_row("memory-cpu", 62.0)
ALL = {"cpu__cores": 16, "cpu__logical_cores": 16}


def test_one_channel() -> None:
    machine = changed(workstation(), **ALL)
    finding = only(ID, with_rows(benched(machine), SLOW), machine)
    assert finding.code == "HW037"
    assert "14 GB/s" in finding.evidence
    assert "dmidecode" in finding.cure.commands[0]


def test_silent_where_it_is_fast_few_cores_ask_or_others_do() -> None:
    machine = changed(workstation(), **ALL)
    assert findings(ID, with_rows(benched(machine), FAST), machine) == ()
    assert findings(ID, benched(machine), machine) == ()
    for changes in (
        {"cpu__cores": 2, "cpu__logical_cores": 2},
        {"cpu__cores": 8, "cpu__logical_cores": 64},
        {**ALL, "container__virtual_machine": "kvm"},
    ):
        machine = changed(workstation(), **changes)
        assert findings(ID, with_rows(benched(machine), SLOW), machine) == ()
