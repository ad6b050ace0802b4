from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, gpu, laptop, rocm, torch, workstation
from machines.software import amd_desktop, with_torch

CHECK = "torch-of-other-vendor"


def test_rocm_on_nvidia_gets_cuda() -> None:
    finding = only(CHECK, broken("rocm-torch-on-nvidia"))
    assert "built for GPUs of AMD" in finding.evidence
    assert "/whl/cu" in commands(finding)


def test_cuda_on_amd_gets_rocm() -> None:
    finding = only(CHECK, broken("cuda-torch-on-amd"))
    assert "built for GPUs of NVIDIA" in finding.evidence
    assert "/whl/rocm" in commands(finding)


def test_xpu_on_nvidia() -> None:
    machine = with_torch(workstation(), "2.9.1", "xpu", xpu="20250201")
    assert "built for GPUs of Intel" in only(CHECK, machine).evidence


def test_both_vendors_and_integrated_gpus_are_no_matter() -> None:
    both = changed(rocm(), gpus=(*rocm().gpus, gpu()))
    assert not findings(CHECK, both)
    integrated = amd_desktop("AMD Radeon 780M", "gfx1103", gpus__0__memory_bytes=2**29)
    assert not findings(CHECK, changed(integrated, interpreter__torch=torch()))
    assert not findings(CHECK, laptop())
    assert not findings(CHECK, changed(rocm(), gpus=None))
