"""A torch that is missing, or does not fit the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import OtherPython, Package
from flatout.nouns.machine import Container
from machines.healthy import (
    changed,
    cpu_server,
    gpu,
    interpreter,
    laptop,
    mac,
    rocm,
    torch,
    workstation,
)
from machines.software import amd_desktop, with_torch


def test_an_error_where_a_gpu_waits() -> None:
    finding = only("ENV020", broken("torch-missing"))
    assert finding.severity is Severity.ERROR
    assert "RTX 4090" in finding.evidence
    assert "pip install torch==" in commands(finding)


def test_a_warning_without_gpu() -> None:
    assert only("ENV020", broken("torch-missing-without-gpu")).severity is Severity.WARNING


def test_a_mac_has_a_gpu_too() -> None:
    assert only("ENV020", changed(mac(), interpreter=interpreter(None))).severity is Severity.ERROR


def test_it_names_the_python_that_has_torch() -> None:
    other = OtherPython("/opt/venv/bin/python", "3.12.3", "venv", "2.9.1+cu128")
    finding = only("ENV020", broken("torch-missing", pythons=(other,)))
    assert "/opt/venv/bin/python has torch 2.9.1+cu128" in finding.evidence


def test_nothing_where_the_packages_are_not_known_or_list_torch() -> None:
    assert not findings("ENV020", broken("torch-missing", interpreter__packages=None))
    listed = changed(workstation(), interpreter__torch=None)
    assert not findings("ENV020", listed)
    conda = changed(cpu_server(), interpreter=interpreter(None, packages=(Package("pytorch"),)))
    assert not findings("ENV020", conda)


def test_the_build_to_install_instead_is_named() -> None:
    finding = only("ENV021", broken("torch-cpu-only"))
    assert finding.severity is Severity.ERROR
    assert "the build that fits is" in finding.evidence
    assert "+cu" in finding.evidence
    assert "/whl/cu" in commands(finding)


def test_rocm_gets_a_rocm_build() -> None:
    assert "/whl/rocm" in commands(only("ENV021", broken("torch-cpu-only-on-rocm")))


def test_a_build_without_name_that_says_itself_that_it_holds_no_kernels() -> None:
    conda = torch("2.9.1", "cpu", installer="conda")
    unnamed = changed(workstation(), interpreter__torch=changed(conda, build=None))
    assert findings("ENV021", unnamed)
    not_asked = changed(unnamed, interpreter__torch__imported=None)
    assert not findings("ENV021", not_asked)


def test_nothing_without_a_gpu_or_with_an_integrated_one() -> None:
    integrated = amd_desktop("AMD Radeon 780M", "gfx1103", gpus__0__shared_memory=True)
    assert not findings("ENV021", changed(integrated, interpreter__torch=torch("2.9.1", "cpu")))
    intel_only = changed(laptop(), gpus=laptop().gpus[1:], interpreter__torch=torch("2.9.1", "cpu"))
    assert not findings("ENV021", intel_only), "Iris Xe is not supported"


def test_rocm_on_nvidia_gets_cuda() -> None:
    finding = only("ENV021", broken("rocm-torch-on-nvidia"))
    assert "built for GPUs of AMD" in finding.evidence
    assert "/whl/cu" in commands(finding)


def test_cuda_on_amd_gets_rocm() -> None:
    finding = only("ENV021", broken("cuda-torch-on-amd"))
    assert "built for GPUs of NVIDIA" in finding.evidence
    assert "/whl/rocm" in commands(finding)


def test_xpu_on_nvidia() -> None:
    machine = with_torch(workstation(), "2.9.1", "xpu", xpu="20250201")
    assert "built for GPUs of Intel" in only("ENV021", machine).evidence


def test_both_vendors_and_integrated_gpus_are_no_matter() -> None:
    both = changed(rocm(), gpus=(*rocm().gpus, gpu()))
    assert not findings("ENV021", both)
    integrated = amd_desktop("AMD Radeon 780M", "gfx1103", gpus__0__memory_bytes=2**29)
    assert not findings("ENV021", changed(integrated, interpreter__torch=torch()))


def test_an_arc_card_gets_xpu() -> None:
    finding = only("ENV021", broken("arc-with-cpu-torch"))
    assert finding.severity is Severity.WARNING
    assert "+xpu" in finding.evidence
    assert "/whl/xpu" in commands(finding)


def test_a_cuda_build_is_as_wrong() -> None:
    assert findings(
        "ENV021", broken("arc-with-cpu-torch", interpreter__torch=torch(cuda_available=False))
    )


def test_an_integrated_arc_counts_by_its_name() -> None:
    integrated = {"gpus__0__name": "Intel Arc Graphics 140V", "gpus__0__shared_memory": True}
    assert findings("ENV021", broken("arc-with-cpu-torch", **integrated))


def test_beside_a_gpu_of_nvidia_an_arc_is_not_the_one_for_training() -> None:
    beside = broken("arc-with-cpu-torch", gpus=(*broken("arc-with-cpu-torch").gpus, gpu()))
    finding = only("ENV021", beside)
    assert finding.severity is Severity.ERROR
    assert "+cu" in finding.evidence


def test_nothing_once_it_is_there() -> None:
    xpu = torch("2.9.1", "xpu", xpu="20250201", xpu_available=True)
    assert not findings("ENV021", broken("arc-with-cpu-torch", interpreter__torch=xpu))


def test_a_blackwell_with_kernels_up_to_hopper() -> None:
    finding = only("ENV023", broken("rtx-5090-with-old-torch"))
    assert "has no kernels for" in finding.title
    assert "compute capability 12.0" in finding.evidence
    assert "sm_90" in finding.evidence
    assert "torch==" in commands(finding)


def test_portable_code_is_translated_for_it() -> None:
    archs = ("sm_80", "sm_90", "compute_90")
    assert not findings(
        "ENV023", broken("rtx-5090-with-old-torch", interpreter__torch__arch_list=archs)
    )


def test_where_torch_does_not_say_its_build_is_looked_up() -> None:
    assert findings("ENV023", broken("rtx-5090-with-old-torch", interpreter__torch__arch_list=None))


def test_nothing_of_unknown_builds_and_gpus() -> None:
    unknown = broken(
        "rtx-5090-with-old-torch",
        interpreter__torch__arch_list=None,
        interpreter__torch__build="cu999",
    )
    assert not findings("ENV023", unknown)


@pytest.mark.parametrize("name", ["rtx-5090-with-old-torch", "gtx-1080-with-new-torch"])
def test_a_gpu_that_is_hidden_or_unknown_does_not_matter(name: str) -> None:
    assert findings("ENV023", broken(name, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert not findings("ENV023", broken(name, environment={"CUDA_VISIBLE_DEVICES": ""}))
    assert not findings("ENV023", broken(name, gpus__0__compute_capability=None))


def test_a_pascal_gets_a_build_that_still_knows_it() -> None:
    finding = only("ENV023", broken("gtx-1080-with-new-torch"))
    assert finding.severity is Severity.ERROR
    assert "is too old for" in finding.title
    assert "compute capability 6.1; the oldest in this torch is 7.0" in finding.evidence
    assert "/whl/cu126" in commands(finding)


def test_beside_a_newer_gpu_it_is_hidden_from_the_job() -> None:
    finding = only("ENV023", broken("old-gpu-beside-new-one"))
    assert finding.severity is Severity.WARNING
    assert "CUDA_VISIBLE_DEVICES=0" in commands(finding)


def test_the_cure_ends_the_finding() -> None:
    cured = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert not findings("ENV023", broken("old-gpu-beside-new-one", environment=cured))


def test_after_a_suspend_the_module_is_loaded_again() -> None:
    finding = only("ENV025", broken("laptop-after-suspend"))
    assert "CUDA unknown error" in finding.evidence
    assert "driver 580.95.05" in finding.evidence
    assert finding.cure.commands == ("sudo modprobe -r nvidia_uvm", "sudo modprobe nvidia_uvm")


def test_another_error_reloads_the_driver() -> None:
    other = broken(
        "laptop-after-suspend", interpreter__torch__cuda_error="No CUDA GPUs are available"
    )
    assert commands(only("ENV025", other))


def test_inside_wsl_and_containers_other_things_help() -> None:
    wsl = broken("laptop-after-suspend", container=Container(wsl=2, gpu_passed_through=True))
    assert "wsl.exe --shutdown" in commands(only("ENV025", wsl))
    docker = broken(
        "laptop-after-suspend", container=Container(kind="docker", gpu_passed_through=True)
    )
    assert "restart the container" in commands(only("ENV025", docker))


@pytest.mark.parametrize(
    "cause",
    [
        {"environment": {"CUDA_VISIBLE_DEVICES": ""}},
        {"environment": {"CUDA_VISIBLE_DEVICES": "7"}},
        {"kernel__device_files__0__readable": False},
        {"kernel__device_files__0__exists": False},
        {"drivers__0__version": "470.57.02"},
        {"drivers__0__nvml_error": "Driver/library version mismatch"},
        {"gpus__0__compute_mode": "prohibited"},
        {"gpus__0__mig": True},
        {"kernel__fabric_manager": False},
        {"gpus__0__driver_sees": False},
        {"interpreter__torch__cuda_available": None},
    ],
    ids=str,
)
def test_what_another_check_tells_is_not_told_twice(cause: dict[str, object]) -> None:
    machine = broken("laptop-after-suspend")
    assert findings("ENV025", machine)
    assert not findings("ENV025", changed(machine, **cause))


def test_a_variable_that_names_the_gpu_is_no_cause() -> None:
    assert findings(
        "ENV025", broken("laptop-after-suspend", environment={"CUDA_VISIBLE_DEVICES": "0"})
    )


def test_a_relatives_kernels_can_be_run() -> None:
    finding = only("ENV023", broken("radeon-without-kernels"))
    assert "is gfx1031; this torch holds gfx1030" in finding.evidence
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in commands(finding)


def test_without_a_relative_another_torch() -> None:
    machine = broken("radeon-without-kernels", interpreter__torch__arch_list=("gfx942",))
    assert "HSA_OVERRIDE" not in commands(only("ENV023", machine))


def test_features_behind_the_name_and_families_count() -> None:
    features = broken("radeon-without-kernels", gpus__0__gfx="gfx90a:sramecc+:xnack-")
    assert not findings("ENV023", holding(features, "gfx90a"))
    assert not findings("ENV023", holding(broken("radeon-without-kernels"), "gfx10-3-generic"))
    assert findings("ENV023", holding(broken("radeon-without-kernels"), "gfx11-generic"))


def holding(machine: object, arch: str) -> object:
    return changed(machine, interpreter__torch__arch_list=(arch,))


def test_an_arm64_python() -> None:
    finding = only("ENV038", broken("mac-under-rosetta"))
    assert "x86_64 under Rosetta" in finding.evidence
    assert "macos-aarch64" in commands(finding)


def test_conda_makes_its_own() -> None:
    assert "CONDA_SUBDIR=osx-arm64" in commands(
        only("ENV038", broken("mac-under-rosetta", interpreter__conda=True))
    )


def test_an_old_macos() -> None:
    finding = only("ENV038", broken("mac-with-old-macos"))
    assert "MPS is built in and not available; macOS 13.7.4" in finding.evidence
    assert "softwareupdate" in commands(finding)


def test_a_torch_without_mps_is_replaced() -> None:
    finding = only("ENV038", broken("mac-with-old-macos", interpreter__torch__mps_built=False))
    assert "torch==" in commands(finding)


SILENT: dict[str, list[Any]] = {
    "ENV023": [
        # nothing once overridden or unknown
        broken("radeon-without-kernels", environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}),
        broken("radeon-without-kernels", gpus__0__gfx=None),
    ],
    "ENV038": [
        # nothing elsewhere
        broken("mac-under-rosetta", system__rosetta=None),
        # nothing without an apple gpu or an answer
        broken("mac-with-old-macos", interpreter__torch__mps_available=None),
        broken("mac-with-old-macos", interpreter__torch__imported=None),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
