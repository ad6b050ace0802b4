"""A torch that is missing, or does not fit the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from flatout.nouns.interpreter import Package
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


@pytest.mark.parametrize("name", ["rtx-5090-with-old-torch", "gtx-1080-with-new-torch"])
def test_a_gpu_that_is_hidden_or_unknown_does_not_matter(name: str) -> None:
    assert findings("ENV023", broken(name, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert not findings("ENV023", broken(name, environment={"CUDA_VISIBLE_DEVICES": ""}))
    assert not findings("ENV023", broken(name, gpus__0__compute_capability=None))


def test_another_error_reloads_the_driver() -> None:
    other = broken(
        "laptop-after-suspend", interpreter__torch__cuda_error="No CUDA GPUs are available"
    )
    assert commands(only("ENV025", other))


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


def test_features_behind_the_name_and_families_count() -> None:
    features = broken("radeon-without-kernels", gpus__0__gfx="gfx90a:sramecc+:xnack-")
    assert not findings("ENV023", holding(features, "gfx90a"))
    assert not findings("ENV023", holding(broken("radeon-without-kernels"), "gfx10-3-generic"))
    assert findings("ENV023", holding(broken("radeon-without-kernels"), "gfx11-generic"))


def holding(machine: object, arch: str) -> object:
    return changed(machine, interpreter__torch__arch_list=(arch,))


TOLD = [
    told("an error where a gpu waits", "ENV020",
         broken("torch-missing"), "RTX 4090", "pip install torch==", severity=Severity.ERROR),
    told("a warning without gpu", "ENV020",
         broken("torch-missing-without-gpu"), severity=Severity.WARNING),
    told("a mac has a gpu too", "ENV020",
         changed(mac(), interpreter=interpreter(None)), severity=Severity.ERROR),
    told("the build to install instead is named", "ENV021",
         broken("torch-cpu-only"), "the build that fits is", "+cu", "/whl/cu",
         severity=Severity.ERROR),
    told("rocm gets a rocm build", "ENV021", broken("torch-cpu-only-on-rocm"), "/whl/rocm"),
    told("rocm on nvidia gets cuda", "ENV021",
         broken("rocm-torch-on-nvidia"), "built for GPUs of AMD", "/whl/cu"),
    told("cuda on amd gets rocm", "ENV021",
         broken("cuda-torch-on-amd"), "built for GPUs of NVIDIA", "/whl/rocm"),
    told("xpu on nvidia", "ENV021",
         with_torch(workstation(), "2.9.1", "xpu", xpu="20250201"), "built for GPUs of Intel"),
    told("an arc card gets xpu", "ENV021",
         broken("arc-with-cpu-torch"), "+xpu", "/whl/xpu", severity=Severity.WARNING),
    told("beside a gpu of nvidia an arc is not the one for training", "ENV021",
         broken("arc-with-cpu-torch", gpus=(*broken("arc-with-cpu-torch").gpus, gpu())), "+cu",
         severity=Severity.ERROR),
    told("a blackwell with kernels up to hopper", "ENV023",
         broken("rtx-5090-with-old-torch"), "has no kernels for", "compute capability 12.0",
         "sm_90", "torch=="),
    told("a pascal gets a build that still knows it", "ENV023",
         broken("gtx-1080-with-new-torch"), "is too old for",
         "compute capability 6.1; the oldest in this torch is 7.0", "/whl/cu126",
         severity=Severity.ERROR),
    told("beside a newer gpu it is hidden from the job", "ENV023",
         broken("old-gpu-beside-new-one"), "CUDA_VISIBLE_DEVICES=0", severity=Severity.WARNING),
    told("after a suspend the module is loaded again", "ENV025",
         broken("laptop-after-suspend"), "CUDA unknown error", "driver 580.95.05",
         "sudo modprobe -r nvidia_uvm", "sudo modprobe nvidia_uvm"),
    told("inside wsl and containers other things help", "ENV025",
         broken("laptop-after-suspend", container=Container(wsl=2, gpu_passed_through=True)),
         "wsl.exe --shutdown"),
    told("inside wsl and containers other things help: 2", "ENV025",
         broken("laptop-after-suspend",
         container=Container(kind="docker", gpu_passed_through=True)), "restart the container"),
    told("a relatives kernels can be run", "ENV023",
         broken("radeon-without-kernels"), "is gfx1031; this torch holds gfx1030",
         "HSA_OVERRIDE_GFX_VERSION=10.3.0"),
    told("without a relative another torch", "ENV023",
         broken("radeon-without-kernels", interpreter__torch__arch_list=("gfx942",)),
         never=("HSA_OVERRIDE",)),
    told("an arm64 python", "ENV038",
         broken("mac-under-rosetta"), "x86_64 under Rosetta", "macos-aarch64"),
    told("conda makes its own", "ENV038",
         broken("mac-under-rosetta", interpreter__conda=True), "CONDA_SUBDIR=osx-arm64"),
    told("an old macos", "ENV038",
         broken("mac-with-old-macos"), "MPS is built in and not available; macOS 13.7.4",
         "softwareupdate"),
    told("a torch without mps is replaced", "ENV038",
         broken("mac-with-old-macos", interpreter__torch__mps_built=False), "torch=="),
    told("a cuda build is as wrong", "ENV021",
         broken("arc-with-cpu-torch", interpreter__torch=torch(cuda_available=False))),
    told("an integrated arc counts by its name", "ENV021",
         broken("arc-with-cpu-torch", gpus__0__name="Intel Arc Graphics 140V",
         gpus__0__shared_memory=True)),
    told("where torch does not say its build is looked up", "ENV023",
         broken("rtx-5090-with-old-torch", interpreter__torch__arch_list=None)),
    told("a variable that names the gpu is no cause", "ENV025",
         broken("laptop-after-suspend", environment={"CUDA_VISIBLE_DEVICES": "0"})),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV023": [
        # portable code is translated for it
        broken(
            "rtx-5090-with-old-torch",
            interpreter__torch__arch_list=("sm_80", "sm_90", "compute_90"),
        ),
        # nothing of unknown builds and gpus
        broken(
            "rtx-5090-with-old-torch",
            interpreter__torch__arch_list=None,
            interpreter__torch__build="cu999",
        ),
        # the cure ends the finding
        broken(
            "old-gpu-beside-new-one",
            environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"},
        ),
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
    "ENV020": [
        # nothing where the packages are not known or list torch
        broken("torch-missing", interpreter__packages=None),
        changed(workstation(), interpreter__torch=None),
        changed(cpu_server(), interpreter=interpreter(None, packages=(Package("pytorch"),))),
    ],
    "ENV021": [
        # both vendors and integrated gpus are no matter
        changed(rocm(), gpus=(*rocm().gpus, gpu())),
        changed(
            amd_desktop("AMD Radeon 780M", "gfx1103", gpus__0__memory_bytes=2**29),
            interpreter__torch=torch(),
        ),
        # nothing once it is there
        broken(
            "arc-with-cpu-torch",
            interpreter__torch=torch("2.9.1", "xpu", xpu="20250201", xpu_available=True),
        ),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
