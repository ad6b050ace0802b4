from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.machine import Container
from machines.healthy import changed, rocm

CHECK = "amdgpu-driver-missing"
NAME = "amdgpu-not-loaded"


def test_the_module_is_loaded_or_installed() -> None:
    finding = only(CHECK, broken(NAME))
    assert "0000:05:00.0 has no kernel driver" in finding.evidence
    assert commands(finding).startswith("sudo modprobe amdgpu")


def test_nothing_where_it_is_loaded_or_not_known() -> None:
    assert not findings(CHECK, rocm())
    assert not findings(CHECK, changed(rocm(), gpus__all__kernel_driver=None))
    assert not findings(CHECK, broken(NAME, kernel__modules=None))


def test_not_inside_a_container_nor_for_an_integrated_gpu() -> None:
    assert not findings(CHECK, broken(NAME, container=Container(kind="docker")))
    assert not findings(CHECK, broken(NAME, container=Container(wsl=2)))
    assert not findings(CHECK, broken(NAME, gpus__0__shared_memory=True))
