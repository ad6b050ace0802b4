from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, cpu_server, laptop, rocm, torch, workstation
from machines.software import amd_desktop

CHECK = "torch-cpu-only"


def test_the_build_to_install_instead_is_named() -> None:
    finding = only(CHECK, broken("torch-cpu-only"))
    assert "the build that fits is" in finding.evidence
    assert "+cu" in finding.evidence
    assert "/whl/cu" in commands(finding)


def test_rocm_gets_a_rocm_build() -> None:
    assert "/whl/rocm" in commands(only(CHECK, broken("torch-cpu-only-on-rocm")))


def test_a_build_without_name_that_says_itself_that_it_holds_no_kernels() -> None:
    conda = torch("2.9.1", "cpu", installer="conda")
    unnamed = changed(workstation(), interpreter__torch=changed(conda, build=None))
    assert findings(CHECK, unnamed)
    not_asked = changed(unnamed, interpreter__torch__imported=None)
    assert not findings(CHECK, not_asked)


def test_nothing_without_a_gpu_or_with_an_integrated_one() -> None:
    assert not findings(CHECK, cpu_server())
    integrated = amd_desktop("AMD Radeon 780M", "gfx1103", gpus__0__shared_memory=True)
    assert not findings(CHECK, changed(integrated, interpreter__torch=torch("2.9.1", "cpu")))
    intel_only = changed(laptop(), gpus=laptop().gpus[1:], interpreter__torch=torch("2.9.1", "cpu"))
    assert not findings(CHECK, intel_only)


def test_nothing_of_a_cuda_or_rocm_build() -> None:
    assert not findings(CHECK, workstation())
    assert not findings(CHECK, rocm())
