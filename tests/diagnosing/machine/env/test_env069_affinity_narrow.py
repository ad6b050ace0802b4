from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, container, workstation

ID = "affinity-narrow"


def test_too_few_for_the_gpus() -> None:
    finding = only(ID, changed(a100(), cpu__affinity_cores=8))
    assert (finding.code, finding.severity) == ("ENV069", Severity.WARNING)
    assert "affinity 8, machine 192 hardware threads" in finding.evidence
    assert "taskset -cp 0-191 $$" in commands(finding)


def test_a_fair_part_is_a_note() -> None:
    finding = only(ID, changed(workstation(), cpu__affinity_cores=8))
    assert finding.severity is Severity.NOTE


def test_variables_that_pin_are_told_and_unset() -> None:
    facts = {"cpu__affinity_cores": 1, "environment": {"OMP_PROC_BIND": "true"}}
    finding = only(ID, changed(workstation(), **facts))
    assert "OMP_PROC_BIND=true" in finding.evidence
    assert "unset OMP_PROC_BIND" in commands(finding)


def test_silent_with_a_quota_or_half_of_the_cores() -> None:
    assert findings(ID, changed(container(), cpu__affinity_cores=4, cpu__quota_cores=4.0)) == ()
    assert findings(ID, changed(workstation(), cpu__affinity_cores=16)) == ()
