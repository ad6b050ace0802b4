from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.software import library

CHECK = "cudnn-shadowed"
NAME = "system-cudnn-in-front"


def test_another_release_in_the_library_path() -> None:
    finding = only(CHECK, broken(NAME))
    assert "/opt/nvidia/lib/libcudnn.so.9.1.0 is 9.1.0" in finding.evidence
    assert "torch brings 9.10.2.21" in finding.evidence
    assert "unset LD_LIBRARY_PATH" in commands(finding)


def test_the_rest_of_the_path_stays() -> None:
    path = {"LD_LIBRARY_PATH": "/opt/nvidia/lib/:/opt/mpi/lib"}
    assert "export LD_LIBRARY_PATH=/opt/mpi/lib" in commands(
        only(CHECK, broken(NAME, environment=path))
    )


def test_what_torch_asks_for_counts_where_the_wheel_is_not_listed() -> None:
    asked = broken(NAME).interpreter.packages[:2]
    machine = broken(
        NAME,
        interpreter__packages=asked,
        interpreter__torch__requires=("nvidia-cudnn-cu12==9.5.1.17; platform_system == 'Linux'",),
    )
    assert "torch brings 9.5.1.17" in only(CHECK, machine).evidence


def test_another_major_and_the_same_version_do_not_clash() -> None:
    for version in ("8.9.7", "9.10.2"):
        assert not findings(CHECK, broken(NAME, libraries=(library("cudnn", version),)))


def test_a_version_of_one_number_says_too_little() -> None:
    assert not findings(CHECK, broken(NAME, libraries=(library("cudnn", "9"),)))


def test_what_only_the_loader_finds_comes_after_torchs_own() -> None:
    assert not findings(CHECK, broken(NAME, libraries__0__source="loader"))
