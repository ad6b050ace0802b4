from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.machine import Container
from machines import broken_ordinary
from machines.healthy import changed, laptop, rocm

CHECK = "amd-device-not-permitted"
NAME = "amd-device-closed"


def test_the_group_that_owns_the_files() -> None:
    finding = only(CHECK, broken(NAME))
    assert "/dev/kfd (0660, group render)" in finding.evidence
    assert 'sudo usermod -aG render "$USER"' in commands(finding)


def test_files_of_root_alone_mean_the_usual_groups() -> None:
    machine = broken(NAME, kernel__device_files__all__group="root")
    assert "usermod -aG render,video" in commands(only(CHECK, machine))


def test_a_container_is_started_anew() -> None:
    machine = broken(NAME, container=Container(kind="docker"))
    assert "--device /dev/kfd" in commands(only(CHECK, machine))


def test_nothing_where_they_are_open_unknown_or_of_another_vendor() -> None:
    assert not findings(CHECK, rocm())
    unknown = broken(
        NAME,
        kernel__device_files__all__readable=None,
        kernel__device_files__all__writable=None,
    )
    assert not findings(CHECK, unknown)
    other = changed(laptop(), kernel__device_files=broken(NAME).kernel.device_files)
    assert not findings(CHECK, other)


def test_graphics_in_the_processor_beside_a_gpu_of_nvidia_are_left_alone() -> None:
    machine = broken_ordinary.linux_with_graphics_in_the_processor()
    assert not findings(CHECK, machine)
    alone = changed(machine, gpus=(broken_ordinary.RADEON,))
    wanted = changed(alone, interpreter__torch__build="rocm6.4", interpreter__torch__cuda=None)
    assert not findings(CHECK, alone)
    assert findings(CHECK, wanted)
