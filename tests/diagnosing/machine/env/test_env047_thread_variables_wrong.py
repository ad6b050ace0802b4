from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, cpu_server, workstation

CHECK = "thread-variables-wrong"


def test_one_thread_on_a_cpu_server() -> None:
    finding = only(CHECK, broken("one-thread"))
    assert finding.severity is Severity.WARNING
    assert "64 cores" in finding.evidence
    assert "unset OMP_NUM_THREADS" in commands(finding)


def test_one_thread_beside_a_gpu_is_a_note() -> None:
    machine = changed(workstation(), environment={"OMP_NUM_THREADS": "1"})
    assert only(CHECK, machine).severity is Severity.NOTE


def test_more_threads_than_cores() -> None:
    finding = only(CHECK, broken("more-threads-than-cores"))
    assert finding.severity is Severity.WARNING
    assert "128: more threads than cores" in finding.title


def test_with_several_gpus_each_ones_share_counts() -> None:
    # 96 physical cores for 8 GPUs: 12 each
    assert not findings(CHECK, changed(a100(), environment={"OMP_NUM_THREADS": "4"}))
    assert findings(CHECK, changed(a100(), environment={"OMP_NUM_THREADS": "2"}))


@pytest.mark.parametrize("value", ["many", "0", ""])
def test_what_is_no_number(value: str) -> None:
    machine = changed(cpu_server(), environment={"MKL_NUM_THREADS": value})
    assert "not a number" in only(CHECK, machine).title


@pytest.mark.parametrize("value", ["32", "64", "16", "32,2"])
def test_sensible_values(value: str) -> None:
    assert not findings(CHECK, changed(cpu_server(), environment={"OMP_NUM_THREADS": value}))


def test_nothing_where_the_cores_are_not_known() -> None:
    assert not findings(CHECK, broken("one-thread", cpu__cores=None))
