from __future__ import annotations

from flatout.diagnosing.machine.env import env007_device_files_missing as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.breaking import missing
from machines.healthy import changed, container, workstation, wsl


def test_cuda_fails_without_uvm() -> None:
    (found,) = checked.check(broken_driver.no_uvm())
    assert found.severity is Severity.ERROR
    assert "/dev/nvidia-uvm" in found.title
    assert "nvidia_uvm is not loaded" in found.evidence
    assert "sudo modprobe nvidia_uvm" in found.cure.commands
    assert "sudo nvidia-modprobe -u -c=0" in found.cure.commands


def test_a_note_where_nobody_has_asked_cuda() -> None:
    listed = changed(
        workstation(),
        kernel__device_files=missing("nvidia-uvm"),
        interpreter__torch__cuda_available=None,
    )
    assert [found.severity for found in checked.check(listed)] == [Severity.NOTE]
    # Without the module nvidia_uvm the file need not be there before CUDA's first start.
    unlisted = changed(broken_driver.no_uvm(), interpreter__torch__cuda_available=None)
    assert not list(checked.check(unlisted))


def test_silent_where_torch_has_its_gpu() -> None:
    works = changed(broken_driver.no_uvm(), interpreter__torch__cuda_available=True)
    assert not list(checked.check(works))


def test_the_control_file_is_always_needed() -> None:
    machine = changed(
        workstation(),
        kernel__device_files=missing("nvidiactl"),
        interpreter__torch__cuda_available=None,
    )
    assert [found.severity for found in checked.check(machine)] == [Severity.ERROR]


def test_a_container_may_have_been_given_the_second_gpu_alone() -> None:
    files = missing("nvidia0", count=2)
    given = changed(
        container(), kernel__device_files=files, interpreter__torch__cuda_available=False
    )
    assert not list(checked.check(given))
    without = changed(given, kernel__device_files=missing("nvidia-uvm", count=2))
    (found,) = checked.check(without)
    assert all(line.startswith("#") for line in found.cure.commands)


def test_silent_without_module_or_without_knowledge() -> None:
    broken = broken_driver.no_uvm()
    silent = [
        wsl(),
        broken_driver.no_driver(),
        broken_driver.docker_without_gpu(),
        changed(broken, kernel__modules=None),
        changed(broken, kernel__device_files=None),
        changed(broken, gpus=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
