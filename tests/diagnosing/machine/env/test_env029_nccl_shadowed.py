from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.software import library

CHECK = "nccl-shadowed"
NAME = "nccl-preloaded"


def test_preloaded_it_is_what_runs() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "NCCL 2.18.3 in LD_PRELOAD" in finding.title
    assert "unset LD_PRELOAD" in commands(finding)


def test_in_the_library_path_torchs_own_path_comes_first() -> None:
    path = {"LD_LIBRARY_PATH": "/opt/nvidia/lib"}
    assert only(CHECK, broken(NAME, environment=path)).severity is Severity.NOTE


def test_a_torch_without_nccl_wheel_takes_that_of_the_path() -> None:
    machine = broken(NAME, environment={"LD_LIBRARY_PATH": "/opt/nvidia/lib"})
    bare = broken(
        NAME,
        environment=machine.environment,
        interpreter__packages=machine.interpreter.packages[:2],
    )
    assert only(CHECK, bare).severity is Severity.WARNING


def test_the_same_version_is_no_matter() -> None:
    assert not findings(CHECK, broken(NAME, libraries=(library("nccl", "2.27.5"),)))
