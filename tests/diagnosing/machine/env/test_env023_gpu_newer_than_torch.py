from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import workstation

CHECK = "gpu-newer-than-torch"
NAME = "rtx-5090-with-old-torch"


def test_a_blackwell_with_kernels_up_to_hopper() -> None:
    finding = only(CHECK, broken(NAME))
    assert "compute capability 12.0" in finding.evidence
    assert "sm_90" in finding.evidence
    assert "torch==" in commands(finding)


def test_portable_code_is_translated_for_it() -> None:
    archs = ("sm_80", "sm_90", "compute_90")
    assert not findings(CHECK, broken(NAME, interpreter__torch__arch_list=archs))


def test_where_torch_does_not_say_its_build_is_looked_up() -> None:
    assert findings(CHECK, broken(NAME, interpreter__torch__arch_list=None))


def test_nothing_of_unknown_builds_and_gpus() -> None:
    unknown = broken(NAME, interpreter__torch__arch_list=None, interpreter__torch__build="cu999")
    assert not findings(CHECK, unknown)
    assert not findings(CHECK, broken(NAME, gpus__0__compute_capability=None))
    assert not findings(CHECK, workstation())


def test_an_older_gpu_is_not_newer() -> None:
    assert not findings(CHECK, broken("gtx-1080-with-new-torch"))


def test_a_gpu_that_is_hidden_from_programs_does_not_matter() -> None:
    assert findings(CHECK, broken(NAME, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert not findings(CHECK, broken(NAME, environment={"CUDA_VISIBLE_DEVICES": ""}))
