from __future__ import annotations

import dataclasses

from diagnosing.ceilings.benched import benched, findings, only
from flatout.benching import benching
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server

ID = "cpu-busy-while-measured"
MACHINE = changed(cpu_server(), cpu__cores=64, cpu__logical_cores=64)


def test_others_at_work() -> None:
    found = dataclasses.replace(benched(MACHINE), busy=0.63)
    finding = only(ID, found, MACHINE)
    assert (finding.code, finding.severity) == ("HW042", Severity.NOTE)
    assert finding.title == "other programs used 63% of the cores"


def test_silent_where_it_is_quiet_unknown_or_not_ours() -> None:
    for busy in (None, 0.0, 0.1):
        found = dataclasses.replace(benched(MACHINE), busy=busy)
        assert findings(ID, found, MACHINE) == ()
    part = changed(MACHINE, cpu__cores=4)
    assert findings(ID, dataclasses.replace(benched(part), busy=0.9), part) == ()


def test_what_is_told_here_is_a_share() -> None:
    busy = benching.cores_busy(0.05)
    assert busy is not None
    assert 0 <= busy <= 1
