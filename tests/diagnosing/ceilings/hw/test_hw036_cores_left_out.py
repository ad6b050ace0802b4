from __future__ import annotations

from diagnosing.ceilings.benched import benched, cpu_row, findings, only, with_rows
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server

ID = "cores-left-out"


ROW = cpu_row("memory-cpu", 90.0)


def test_a_quota() -> None:
    machine = changed(cpu_server(), cpu__cores=2, cpu__logical_cores=64, cpu__quota_cores=2.5)
    finding = only(ID, with_rows(benched(machine), ROW), machine)
    assert (finding.code, finding.severity) == ("HW036", Severity.NOTE)
    assert "2 cores of the machine's 64" in finding.title
    assert "quota is 2.5" in finding.evidence


def test_silent_where_most_are_there_or_the_cpu_was_not_measured() -> None:
    machine = changed(cpu_server(), cpu__cores=2, cpu__logical_cores=64)
    assert findings(ID, benched(machine), machine) == ()
    assert findings(ID, with_rows(benched(cpu_server()), ROW), cpu_server()) == ()
    unknown = changed(machine, cpu__logical_cores=None)
    assert findings(ID, with_rows(benched(unknown), ROW), unknown) == ()
