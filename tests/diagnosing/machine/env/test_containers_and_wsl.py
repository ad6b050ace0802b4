"""What containers and WSL were not given."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.machine.asking import commands, each, findings, only
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


def test_the_bus_of_the_host_shows_a_gpu() -> None:
    found = only("ENV011", broken_driver.docker_without_gpu())
    assert found.severity is Severity.ERROR
    assert "NVIDIA L4 at 0000:21:00.0" in found.evidence
    assert "# docker run --gpus all IMAGE" in found.cure.commands
    assert any("compose.yaml" in line for line in found.cure.commands)
    assert any("nvidia-ctk" in line for line in found.cure.commands)


def test_torch_alone_is_weaker_evidence() -> None:
    found = only("ENV011", broken_driver.pod_without_gpu())
    assert found.severity is Severity.WARNING
    assert any("nvidia.com/gpu: 1" in line for line in found.cure.commands)


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


def test_amd_gpus_are_passed_by_their_device_files() -> None:
    found = only(
        "ENV011", changed(rocm(), container__kind="docker", container__gpu_passed_through=False)
    )
    assert any("--device /dev/kfd" in line for line in found.cure.commands)
    assert not any("nvidia" in line for line in found.cure.commands)


def test_silent_where_nobody_expects_a_gpu() -> None:
    plain = changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False)
    asked = changed(plain, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert [found.severity for found in findings("ENV011", asked)] == [Severity.WARNING]


def test_a_container_made_for_the_processor_on_a_host_with_a_gpu() -> None:
    made_for_cpu = changed(
        broken_driver.docker_without_gpu(), interpreter__torch=torch("2.9.1", "cpu")
    )
    assert [found.severity for found in findings("ENV011", made_for_cpu)] == [Severity.WARNING]


def test_the_small_gpu_of_a_processor_is_not_expected() -> None:
    small = rocm().gpus_of("amd")[:1]
    desktop = changed(
        cpu_server(), gpus=small, container__kind="docker", container__gpu_passed_through=False
    )
    assert not findings("ENV011", desktop)


def test_a_libcuda_of_a_linux_package() -> None:
    found = only("ENV012", broken_driver.wsl_linux_driver())
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05" in found.evidence
    assert found.severity is Severity.ERROR
    assert any(line.startswith("sudo apt-get purge") for line in found.cure.commands)


def test_the_version_alone_and_torch_still_works() -> None:
    found = only("ENV012", changed(wsl(), drivers__0__library_version="580.95.05"))
    assert found.severity is Severity.WARNING
    assert "libcuda.so.580.95.05" in found.evidence


def test_an_unknown_distribution_gets_a_remark() -> None:
    other = changed(
        broken_driver.wsl_linux_driver(),
        system__distribution="nixos",
        system__distribution_like=(),
    )
    found = only("ENV012", other)
    assert found.cure.commands[0].startswith("# Remove")


def test_wsl_1() -> None:
    found = only("ENV013", broken_driver.wsl_1())
    assert found.severity is Severity.ERROR
    assert "4.4.0-22621-Microsoft" in found.evidence
    assert "wsl --set-version $WSL_DISTRO_NAME 2" in found.cure.commands[0]


def test_wsl_1_is_a_warning_for_a_torch_without_cuda() -> None:
    cpu = changed(broken_driver.wsl_1(), interpreter__torch=torch("2.9.1", "cpu"))
    assert [found.severity for found in findings("ENV013", cpu)] == [Severity.WARNING]


def test_no_device_file() -> None:
    found = only("ENV013", broken_driver.wsl_without_dxg())
    assert "4.19.104-microsoft-standard, older than 4.19.121" in found.evidence
    assert found.severity is Severity.ERROR
    assert "wsl.exe --update" in found.cure.commands
    assert any("Windows driver" in line for line in found.cure.commands)


def test_a_newer_kernel_is_not_blamed() -> None:
    newer = changed(
        broken_driver.wsl_without_dxg(), system__release="6.6.87.2-microsoft-standard-WSL2"
    )
    found = only("ENV013", newer)
    assert "older" not in found.evidence


def test_no_device_file_is_a_warning_for_a_torch_without_cuda() -> None:
    cpu = changed(broken_driver.wsl_without_dxg(), interpreter__torch=torch("2.9.1", "cpu"))
    assert [found.severity for found in findings("ENV013", cpu)] == [Severity.WARNING]


def test_docker_gets_the_option_of_docker() -> None:
    finding = only("ENV060", changed(container(), **SMALL))
    assert finding.severity is Severity.WARNING
    assert "64 MiB" in finding.title
    assert "1.0 MiB free" in finding.evidence
    assert "docker run --shm-size=16g" in commands(finding)


def test_podman_and_kubernetes_get_their_own() -> None:
    podman = only("ENV060", changed(container(), container__kind="podman", **SMALL))
    assert "podman run --shm-size" in commands(podman)
    pod = only("ENV060", changed(container(), container__kind="kubernetes", **SMALL))
    assert "medium: Memory" in commands(pod)


def test_on_the_metal_it_is_mounted_again() -> None:
    finding = only("ENV060", changed(workstation(), **SMALL))
    assert commands(finding).startswith("sudo mount -o remount,size=16G /dev/shm")
    as_root = only("ENV060", changed(workstation(), system__root=True, **SMALL))
    assert commands(as_root).startswith("mount ")


def test_not_more_than_half_of_the_memory_is_asked_for() -> None:
    finding = only("ENV060", changed(container(), memory__limit_bytes=8 * GIB, **SMALL))
    assert "--shm-size=4g" in commands(finding)


def test_silent_where_it_is_large_enough_or_does_not_exist() -> None:
    assert findings("ENV060", changed(workstation(), memory__shm_bytes=GIB)) == ()
    small_box = changed(workstation(), memory=memory(2), memory__shm_bytes=GIB // 2 + 1)
    assert findings("ENV060", small_box) == ()
    assert findings("ENV060", changed(mac(), memory__shm_bytes=1)) == ()


def test_quota_far_under_the_cores() -> None:
    finding = only("ENV063", changed(container(), cpu__quota_cores=4.0))
    assert finding.severity is Severity.WARNING
    assert "quota 4 cores, visible 32" in finding.evidence
    assert "export OMP_NUM_THREADS=4" in commands(finding)


def test_half_a_core_is_one_thread() -> None:
    finding = only("ENV063", changed(container(), cpu__quota_cores=0.5))
    assert "export OMP_NUM_THREADS=1" in commands(finding)


def test_silent_where_the_programs_are_told_the_number() -> None:
    told = {"cpu__quota_cores": 4.0, "environment": {"OMP_NUM_THREADS": "4"}}
    assert findings("ENV063", changed(container(), **told)) == ()
    wrong = {"cpu__quota_cores": 4.0, "environment": {"OMP_NUM_THREADS": "32"}}
    assert "OMP_NUM_THREADS is 32" in only("ENV063", changed(container(), **wrong)).evidence


def test_the_quota_is_raised_where_it_was_set() -> None:
    pod = commands(only("ENV063", broken_shared.pod_with_slice()))
    assert "resources.limits.cpu" in pod and "docker" not in pod


def test_less_than_the_gpu() -> None:
    finding = only("ENV064", changed(wsl(), memory=memory(16)))
    assert finding.severity is Severity.WARNING
    assert "main memory of WSL 16 GiB; the GPU has 24 GiB" in finding.evidence
    assert "memory=30GB" in commands(finding)
    assert finding.cure.commands[-1] == "wsl.exe --shutdown"


def test_it_stands_for_the_general_finding() -> None:
    found = diagnose(changed(wsl(), memory=memory(6)))
    assert [item.code for item in found] == ["ENV064"]


SILENT: dict[str, list[Any]] = {
    "ENV011": [
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
    ],
    "ENV013": [
        changed(broken_driver.wsl_without_dxg(), kernel__device_files=None),
        changed(broken_driver.wsl_without_dxg(), container__kind="docker"),
    ],
    "ENV063": [
        # affinity counts as visible
        changed(container(), cpu__quota_cores=4.0, cpu__affinity_cores=4),
        # silent where the quota is most of the cores
        changed(container(), cpu__quota_cores=30.0),
    ],
    "ENV064": [
        # wsl with enough
        changed(wsl(), memory=memory(24)),
    ],
}


@pytest.mark.parametrize(("code", "machine"), each(SILENT))
def test_nothing_is_told(code: str, machine: Any) -> None:
    assert findings(code, machine) == ()
