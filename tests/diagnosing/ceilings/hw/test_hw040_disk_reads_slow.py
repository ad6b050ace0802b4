from __future__ import annotations

from diagnosing.ceilings.benched import benched, cpu_row, findings, only, with_rows
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation

ID = "disk-reads-slow"


def test_a_network_disk() -> None:
    machine = changed(
        workstation(), disks__0__use="work", disks__0__file_system="nfs4", disks__0__network=True
    )
    finding = only(ID, with_rows(benched(machine), cpu_row("disk-read", 0.06)), machine)
    assert (finding.code, finding.severity) == ("HW040", Severity.NOTE)
    assert "60 MB/s" in finding.title
    assert "nfs4; over the network" in finding.evidence


def test_silent_where_it_is_fast_or_was_not_measured() -> None:
    machine = workstation()
    assert findings(ID, with_rows(benched(machine), cpu_row("disk-read", 2.0)), machine) == ()
    assert findings(ID, benched(machine), machine) == ()
