from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import Package
from machines.healthy import workstation
from machines.software import SITE, with_packages

CHECK = "torch-parts-mixed"
PIN = "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'"


def with_cudnn(version: str, name: str = "nvidia-cudnn-cu12") -> object:
    return with_packages(
        workstation(),
        Package(name, version, SITE, "pip"),
        interpreter__torch__requires=(PIN, "triton==3.5.1", "not a requirement =="),
    )


def test_torchvision_of_another_release() -> None:
    finding = only(CHECK, broken("torchvision-of-another-release"))
    assert finding.severity is Severity.ERROR
    assert "torchvision 0.20.1, fits: 0.24" in finding.evidence
    assert "'torchvision==0.24.*' --index-url" in commands(finding)
    assert "/whl/cu128" in commands(finding)


def test_the_right_ones() -> None:
    right = (Package("torchvision", "0.24.1"), Package("torchaudio", "2.9.1"))
    assert not findings(CHECK, with_packages(workstation(), *right))


def test_torch_of_conda_gets_its_parts_from_conda() -> None:
    machine = broken(
        "torchvision-of-another-release",
        interpreter__conda=True,
        interpreter__torch__installer="conda",
    )
    assert "conda install" in commands(only(CHECK, machine))


def test_a_cuda_library_in_another_version() -> None:
    finding = only(CHECK, with_cudnn("9.5.1.17"))
    assert finding.severity is Severity.WARNING
    assert "nvidia-cudnn-cu12 9.5.1.17, torch asks for 9.10.2.21" in finding.evidence
    assert "install nvidia-cudnn-cu12==9.10.2.21" in commands(finding)


def test_the_version_asked_for_and_libraries_of_another_cuda_are_fine() -> None:
    assert not findings(CHECK, with_cudnn("9.10.2.21"))
    assert not findings(CHECK, with_cudnn("9.5.1.17", "nvidia-cudnn-cu11"))


def test_of_a_torch_that_is_not_in_the_table_nothing_is_said() -> None:
    machine = broken("torchvision-of-another-release", interpreter__torch__version="9.9.9")
    assert not findings(CHECK, machine)
