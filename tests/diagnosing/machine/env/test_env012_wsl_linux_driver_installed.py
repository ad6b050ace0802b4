from __future__ import annotations

from flatout.diagnosing.machine.env import env012_wsl_linux_driver_installed as checked
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Library
from machines import broken_driver
from machines.healthy import changed, workstation, wsl


def test_a_libcuda_of_a_linux_package() -> None:
    (found,) = checked.check(broken_driver.wsl_linux_driver())
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05" in found.evidence
    assert found.severity is None
    assert any(line.startswith("sudo apt-get purge") for line in found.cure.commands)


def test_the_version_alone_and_torch_still_works() -> None:
    (found,) = checked.check(changed(wsl(), drivers__0__library_version="580.95.05"))
    assert found.severity is Severity.WARNING
    assert "libcuda.so.580.95.05" in found.evidence


def test_an_unknown_distribution_gets_a_remark() -> None:
    other = changed(
        broken_driver.wsl_linux_driver(),
        system__distribution="nixos",
        system__distribution_like=(),
    )
    (found,) = checked.check(other)
    assert found.cure.commands[0].startswith("# Remove")


def test_silent_on_the_right_library_stubs_and_elsewhere() -> None:
    right = (
        Library("cuda", "/usr/lib/wsl/lib/libcuda.so.1"),
        Library("cuda", "/usr/local/cuda/lib64/stubs/libcuda.so"),
        Library("cuda", "/usr/local/cuda-12.8/compat/libcuda.so.570.86.10", "570.86.10"),
        Library("cudnn", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.10.2", "9.10.2"),
    )
    silent = [
        wsl(),
        changed(wsl(), libraries=right),
        changed(wsl(), libraries=None, drivers=None),
        workstation(),
        changed(broken_driver.wsl_linux_driver(), container__wsl=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
