from __future__ import annotations

from flatout.diagnosing.machine.env import env006_device_files_not_permitted as checked
from flatout.nouns.machine import DeviceFile
from machines import broken_driver, broken_shared
from machines.healthy import changed, rocm, workstation


def test_the_group_of_the_files() -> None:
    (found,) = checked.check(broken_driver.files_of_video())
    assert "/dev/nvidia0, mode 0660, group video" in found.evidence
    assert "this user is in: users" in found.evidence
    assert found.cure.commands[0] == 'sudo usermod -aG video "$(id -un)"'


def test_files_of_root_alone() -> None:
    broken = changed(
        broken_driver.files_of_video(),
        kernel__device_files__all__group="root",
        kernel__device_files__all__mode="0600",
    )
    (found,) = checked.check(broken)
    assert not any("usermod" in line for line in found.cure.commands)
    assert any("NVreg_DeviceFileMode=0666" in line for line in found.cure.commands)


def test_readable_is_not_enough() -> None:
    machine = changed(workstation(), kernel__device_files__1__writable=False)
    (found,) = checked.check(machine)
    assert found.title == "no permission on /dev/nvidiactl"
    assert "readable: yes, writable: no" in found.evidence


def test_silent_on_files_that_do_not_matter_or_are_not_known() -> None:
    caps = DeviceFile("/dev/nvidia-caps/nvidia-cap1", True, False, False, "root", "0400")
    silent = [
        workstation(),
        rocm(),
        changed(workstation(), kernel__device_files=(caps,)),
        changed(workstation(), kernel__device_files=None),
        changed(workstation(), kernel__device_files__all__writable=None),
        changed(broken_driver.files_of_video(), kernel__device_files__all__exists=False),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)


def test_a_job_that_was_given_no_gpu_is_told_so_and_no_file_is_changed() -> None:
    (found,) = checked.check(broken_shared.job_without_gpu())
    assert found.title == "this job was given none of the 8 NVIDIA GPUs here"
    assert any("--gres=gpu:1" in line for line in found.cure.commands)
    assert not any("chmod" in line for line in found.cure.commands)


def test_silent_on_the_gpus_of_other_jobs_and_on_devices_lost_in_docker() -> None:
    assert list(checked.check(broken_shared.job_with_one_gpu())) == []
    lost = changed(broken_shared.job_without_gpu(), container__kind="docker")
    assert list(checked.check(lost)) == []
