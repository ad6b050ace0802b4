"""What containers and WSL were not given."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import Told, commands, each, each_of, findings, only, told
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Library
from machines import broken_driver, broken_shared
from machines.healthy import (
    GIB,
    changed,
    container,
    cpu_server,
    mac,
    memory,
    rocm,
    torch,
    workstation,
    wsl,
)

SMALL = {"memory__shm_bytes": 64 * 2**20, "memory__shm_free_bytes": 2**20}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("podman", "podman run --device nvidia.com/gpu=all"),
        ("singularity", "--nv"),
        ("lxc", "lxc config device add"),
        ("containerd", "nerdctl run --gpus all"),
        ("something-new", "docker run --gpus all"),
    ],
)
def test_each_kind_has_its_own_way(kind: str, words: str) -> None:
    found = only("ENV011", changed(broken_driver.docker_without_gpu(), container__kind=kind))
    assert any(words in line for line in found.cure.commands)
    assert all(line.startswith("#") for line in found.cure.commands)


def test_silent_where_nobody_expects_a_gpu() -> None:
    plain = changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False)
    asked = changed(plain, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert [found.severity for found in findings("ENV011", asked)] == [Severity.WARNING]


def test_a_libcuda_of_a_linux_package() -> None:
    found = only("ENV012", broken_driver.wsl_linux_driver())
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05" in found.evidence
    assert found.severity is Severity.ERROR
    assert any(line.startswith("sudo apt-get purge") for line in found.cure.commands)


def test_the_quota_is_raised_where_it_was_set() -> None:
    pod = commands(only("ENV063", broken_shared.pod_with_slice()))
    assert "resources.limits.cpu" in pod and "docker" not in pod


def test_it_stands_for_the_general_finding() -> None:
    found = diagnose(changed(wsl(), memory=memory(6)))
    assert [item.code for item in found] == ["ENV064"]


TOLD = [
    told("the bus of the host shows a gpu", "ENV011",
         broken_driver.docker_without_gpu(), "NVIDIA L4 at 0000:21:00.0",
         "# docker run --gpus all IMAGE", "compose.yaml", "nvidia-ctk", severity=Severity.ERROR),
    told("torch alone is weaker evidence", "ENV011",
         broken_driver.pod_without_gpu(), "nvidia.com/gpu: 1", severity=Severity.WARNING),
    told("amd gpus are passed by their device files", "ENV011",
         changed(rocm(), container__kind="docker", container__gpu_passed_through=False),
         "--device /dev/kfd", never=("nvidia-", "--gpus")),
    told("the version alone and torch still works", "ENV012",
         changed(wsl(), drivers__0__library_version="580.95.05"), "libcuda.so.580.95.05",
         severity=Severity.WARNING),
    told("an unknown distribution gets a remark", "ENV012",
         changed(broken_driver.wsl_linux_driver(), system__distribution="nixos",
         system__distribution_like=()), "# Remove"),
    told("wsl 1", "ENV012",
         broken_driver.wsl_1(), "4.4.0-22621-Microsoft", "wsl --set-version $WSL_DISTRO_NAME 2",
         severity=Severity.ERROR),
    told("no device file", "ENV012",
         broken_driver.wsl_without_dxg(), "4.19.104-microsoft-standard, older than 4.19.121",
         "wsl.exe --update", "Windows driver", severity=Severity.ERROR),
    told("a newer kernel is not blamed", "ENV012",
         changed(broken_driver.wsl_without_dxg(),
         system__release="6.6.87.2-microsoft-standard-WSL2"), never=("older",)),
    told("docker gets the option of docker", "ENV060",
         changed(container(), **SMALL), "64 MiB", "1.0 MiB free", "docker run --shm-size=16g",
         severity=Severity.WARNING),
    told("podman and kubernetes get their own", "ENV060",
         changed(container(), container__kind="podman", **SMALL), "podman run --shm-size"),
    told("podman and kubernetes get their own: 2", "ENV060",
         changed(container(), container__kind="kubernetes", **SMALL), "medium: Memory"),
    told("on the metal it is mounted again", "ENV060",
         changed(workstation(), **SMALL), "sudo mount -o remount,size=16G /dev/shm"),
    told("on the metal it is mounted again: 2", "ENV060",
         changed(workstation(), system__root=True, **SMALL), "mount "),
    told("not more than half of the memory is asked for", "ENV060",
         changed(container(), memory__limit_bytes=8 * GIB, **SMALL), "--shm-size=4g"),
    told("quota far under the cores", "ENV063",
         changed(container(), cpu__quota_cores=4.0), "quota 4 cores, visible 32",
         "export OMP_NUM_THREADS=4", severity=Severity.WARNING),
    told("half a core is one thread", "ENV063",
         changed(container(), cpu__quota_cores=0.5), "export OMP_NUM_THREADS=1"),
    told("silent where the programs are told the number", "ENV063",
         changed(container(), cpu__quota_cores=4.0, environment={"OMP_NUM_THREADS": "32"}),
         "OMP_NUM_THREADS is 32"),
    told("less than the gpu", "ENV064",
         changed(wsl(), memory=memory(16)), "main memory of WSL 16 GiB; the GPU has 24 GiB",
         "memory=30GB", "wsl.exe --shutdown", severity=Severity.WARNING),
    told("a container made for the processor on a host with a gpu", "ENV011",
         changed(broken_driver.docker_without_gpu(), interpreter__torch=torch("2.9.1", "cpu")),
         severity=Severity.WARNING),
    told("wsl 1 is a warning for a torch without cuda", "ENV012",
         changed(broken_driver.wsl_1(), interpreter__torch=torch("2.9.1", "cpu")),
         severity=Severity.WARNING),
    told("no device file is a warning for a torch without cuda", "ENV012",
         changed(broken_driver.wsl_without_dxg(), interpreter__torch=torch("2.9.1", "cpu")),
         severity=Severity.WARNING),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: Told) -> None:
    case.holds()


SILENT: dict[str, list[Any]] = {
    "ENV011": [
        # the small gpu of a processor is not expected
        changed(
            cpu_server(),
            gpus=rocm().gpus_of("amd")[:1],
            container__kind="docker",
            container__gpu_passed_through=False,
        ),
        changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False),
        changed(
            changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False),
            interpreter=None,
        ),
        changed(
            changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False),
            environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        ),
        changed(
            changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False),
            interpreter__torch=torch(),
            container__gpu_passed_through=None,
        ),
        changed(broken_driver.docker_without_gpu(), container__kind=None),
    ],
    "ENV012": [
        changed(
            wsl(),
            libraries=(
                Library("cuda", "/usr/lib/wsl/lib/libcuda.so.1"),
                Library("cuda", "/usr/local/cuda/lib64/stubs/libcuda.so"),
                Library("cuda", "/usr/local/cuda-12.8/compat/libcuda.so.570.86.10", "570.86.10"),
                Library("cudnn", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.10.2", "9.10.2"),
            ),
        ),
        changed(wsl(), libraries=None, drivers=None),
        changed(broken_driver.wsl_linux_driver(), container__wsl=None),
        changed(broken_driver.wsl_without_dxg(), kernel__device_files=None),
        changed(broken_driver.wsl_without_dxg(), container__kind="docker"),
    ],
    "ENV063": [
        # silent where the programs are told the number
        changed(container(), cpu__quota_cores=4.0, environment={"OMP_NUM_THREADS": "4"}),
        # affinity counts as visible
        changed(container(), cpu__quota_cores=4.0, cpu__affinity_cores=4),
        # silent where the quota is most of the cores
        changed(container(), cpu__quota_cores=30.0),
    ],
    "ENV064": [
        # wsl with enough
        changed(wsl(), memory=memory(24)),
    ],
    "ENV060": [
        # silent where it is large enough or does not exist
        changed(workstation(), memory__shm_bytes=GIB),
        changed(workstation(), memory=memory(2), memory__shm_bytes=GIB // 2 + 1),
        changed(mac(), memory__shm_bytes=1),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
