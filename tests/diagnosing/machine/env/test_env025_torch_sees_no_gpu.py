from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.machine import Container
from machines.healthy import changed

CHECK = "torch-sees-no-gpu"
NAME = "laptop-after-suspend"


def test_after_a_suspend_the_module_is_loaded_again() -> None:
    finding = only(CHECK, broken(NAME))
    assert "CUDA unknown error" in finding.evidence
    assert "driver 580.95.05" in finding.evidence
    assert finding.cure.commands == ("sudo modprobe -r nvidia_uvm", "sudo modprobe nvidia_uvm")


def test_another_error_reloads_the_driver() -> None:
    other = broken(NAME, interpreter__torch__cuda_error="No CUDA GPUs are available")
    assert commands(only(CHECK, other))


def test_inside_wsl_and_containers_other_things_help() -> None:
    wsl = broken(NAME, container=Container(wsl=2, gpu_passed_through=True))
    assert "wsl.exe --shutdown" in commands(only(CHECK, wsl))
    docker = broken(NAME, container=Container(kind="docker", gpu_passed_through=True))
    assert "restart the container" in commands(only(CHECK, docker))


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
    machine = broken(NAME)
    assert findings(CHECK, machine)
    assert not findings(CHECK, changed(machine, **cause))


def test_a_variable_that_names_the_gpu_is_no_cause() -> None:
    assert findings(CHECK, broken(NAME, environment={"CUDA_VISIBLE_DEVICES": "0"}))
