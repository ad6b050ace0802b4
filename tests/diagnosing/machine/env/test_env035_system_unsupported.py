from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Severity
from machines.healthy import changed, container, mac, windows, workstation

CHECK = "system-unsupported"


def test_an_old_glibc_with_a_release_that_still_fits() -> None:
    finding = only(CHECK, broken("old-glibc"))
    assert finding.severity is Severity.WARNING
    assert "glibc 2.17; torch" in finding.evidence
    assert "torch==2.6.0" in commands(finding)
    assert "# or: docker run --rm -it --gpus all" in commands(finding)


def test_an_old_glibc_under_a_gpu_that_needs_a_new_release() -> None:
    machine = broken("old-glibc", gpus=broken("rtx-5090-with-old-torch").gpus)
    finding = only(CHECK, machine)
    assert finding.severity is Severity.ERROR
    assert finding.cure.commands == ("docker run --rm -it --gpus all ubuntu:24.04",)


def test_musl() -> None:
    finding = only(CHECK, broken("alpine"))
    assert "musl" in finding.title
    assert "--gpus" not in commands(finding)


def test_in_a_container_the_image_is_wrong() -> None:
    machine = changed(container(), system__libc="musl 1.2.5", interpreter__torch=None)
    assert "# build the image" in commands(only(CHECK, machine))


def test_a_torch_that_works_there_is_a_note() -> None:
    finding = only(CHECK, changed(workstation(), system__libc="glibc 2.17"))
    assert finding.severity is Severity.NOTE
    assert "works here" in finding.evidence


def test_a_32_bit_python() -> None:
    machine = changed(windows(), interpreter__bits=32, interpreter__torch=None)
    assert "--architecture x64" in commands(only(CHECK, machine))


def test_old_windows_and_old_macos() -> None:
    seven = changed(windows(), system__release="6.1.7601", interpreter__torch=None)
    assert "needs 10.0" in only(CHECK, seven).evidence
    old = changed(mac(), system__distribution_version="10.15", interpreter__torch=None)
    finding = only(CHECK, old)
    assert f"needs {pytorch.newest().macos}" in finding.evidence
    assert finding.severity is Severity.ERROR
    less_old = changed(old, system__distribution_version="13.7.4")
    assert only(CHECK, less_old).severity is Severity.WARNING


def test_a_mac_with_an_intel_processor() -> None:
    machine = changed(mac(), system__architecture="x86_64", interpreter__torch=None)
    finding = only(CHECK, machine)
    assert "torch ends with 2.2.2" in finding.title
    assert "'numpy<2'" in commands(finding)
    assert not findings(CHECK, changed(machine, system__rosetta=True))


def test_what_is_not_known_is_not_claimed() -> None:
    assert not findings(CHECK, changed(workstation(), system__libc=None))
    assert not findings(CHECK, changed(windows(), system__release=None))
