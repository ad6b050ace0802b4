from __future__ import annotations

import pytest

from flatout.diagnosing.machine.env import env011_container_without_gpu as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import changed, container, cpu_server, rocm, torch


def test_the_bus_of_the_host_shows_a_gpu() -> None:
    (found,) = checked.check(broken_driver.docker_without_gpu())
    assert found.severity is None
    assert checked.CHECK.severity is Severity.ERROR
    assert "NVIDIA L4 at 0000:21:00.0" in found.evidence
    assert "# docker run --gpus all IMAGE" in found.cure.commands
    assert any("compose.yaml" in line for line in found.cure.commands)
    assert any("nvidia-ctk" in line for line in found.cure.commands)


def test_torch_alone_is_weaker_evidence() -> None:
    (found,) = checked.check(broken_driver.pod_without_gpu())
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
    (found,) = checked.check(changed(broken_driver.docker_without_gpu(), container__kind=kind))
    assert any(words in line for line in found.cure.commands)
    assert all(line.startswith("#") for line in found.cure.commands)


def test_amd_gpus_are_passed_by_their_device_files() -> None:
    (found,) = checked.check(
        changed(rocm(), container__kind="docker", container__gpu_passed_through=False)
    )
    assert any("--device /dev/kfd" in line for line in found.cure.commands)
    assert not any("nvidia" in line for line in found.cure.commands)


def test_silent_where_nobody_expects_a_gpu() -> None:
    plain = changed(cpu_server(), container__kind="docker", container__gpu_passed_through=False)
    asked = changed(plain, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    silent = [
        container(),
        plain,
        changed(plain, interpreter=None),
        changed(plain, environment={"NVIDIA_VISIBLE_DEVICES": "void"}),
        changed(plain, interpreter__torch=torch(), container__gpu_passed_through=None),
        changed(broken_driver.docker_without_gpu(), container__kind=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
    assert [found.severity for found in checked.check(asked)] == [Severity.WARNING]


def test_a_container_made_for_the_processor_on_a_host_with_a_gpu() -> None:
    made_for_cpu = changed(
        broken_driver.docker_without_gpu(), interpreter__torch=torch("2.9.1", "cpu")
    )
    assert [found.severity for found in checked.check(made_for_cpu)] == [Severity.WARNING]


def test_the_small_gpu_of_a_processor_is_not_expected() -> None:
    small = rocm().gpus_of("amd")[:1]
    desktop = changed(
        cpu_server(), gpus=small, container__kind="docker", container__gpu_passed_through=False
    )
    assert not list(checked.check(desktop))
