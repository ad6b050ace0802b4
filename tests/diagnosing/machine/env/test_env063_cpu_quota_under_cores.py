from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines import broken_shared
from machines.healthy import changed, container

ID = "cpu-quota-under-cores"


def test_quota_far_under_the_cores() -> None:
    finding = only(ID, changed(container(), cpu__quota_cores=4.0))
    assert (finding.code, finding.severity) == ("ENV063", Severity.WARNING)
    assert "quota 4 cores, visible 32" in finding.evidence
    assert "export OMP_NUM_THREADS=4" in commands(finding)


def test_half_a_core_is_one_thread() -> None:
    finding = only(ID, changed(container(), cpu__quota_cores=0.5))
    assert "export OMP_NUM_THREADS=1" in commands(finding)


def test_affinity_counts_as_visible() -> None:
    assert findings(ID, changed(container(), cpu__quota_cores=4.0, cpu__affinity_cores=4)) == ()


def test_silent_where_the_programs_are_told_the_number() -> None:
    told = {"cpu__quota_cores": 4.0, "environment": {"OMP_NUM_THREADS": "4"}}
    assert findings(ID, changed(container(), **told)) == ()
    wrong = {"cpu__quota_cores": 4.0, "environment": {"OMP_NUM_THREADS": "32"}}
    assert "OMP_NUM_THREADS is 32" in only(ID, changed(container(), **wrong)).evidence


def test_silent_where_the_quota_is_most_of_the_cores() -> None:
    assert findings(ID, changed(container(), cpu__quota_cores=30.0)) == ()


def test_the_quota_is_raised_where_it_was_set() -> None:
    pod = commands(only(ID, broken_shared.pod_with_slice()))
    assert "resources.limits.cpu" in pod and "docker" not in pod
