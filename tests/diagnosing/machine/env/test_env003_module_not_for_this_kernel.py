from __future__ import annotations

from flatout.diagnosing.machine.env import env003_module_not_for_this_kernel as checked
from machines import broken_driver
from machines.healthy import changed, workstation


def test_after_a_kernel_update() -> None:
    (found,) = checked.check(broken_driver.kernel_updated())
    assert "6.8.0-48-generic" in found.title
    assert "6.8.0-45-generic, 6.8.0-47-generic" in found.evidence
    assert "kernel headers: missing; dkms: there" in found.evidence
    lines = found.cure.commands
    headers = next(i for i, line in enumerate(lines) if "linux-headers" in line)
    build = next(i for i, line in enumerate(lines) if "dkms autoinstall" in line)
    load = next(i for i, line in enumerate(lines) if "modprobe nvidia" in line)
    assert headers < build < load


def test_headers_that_are_there_are_not_installed() -> None:
    (found,) = checked.check(changed(broken_driver.kernel_updated(), kernel__headers=True))
    run = [line for line in found.cure.commands if not line.startswith("#")]
    assert not any("linux-headers" in line for line in run)


def test_without_dkms_the_driver_is_installed_with_it() -> None:
    (found,) = checked.check(changed(broken_driver.kernel_updated(), kernel__dkms=False))
    assert any("dkms" in line and "install" in line for line in found.cure.commands)
    assert not any("autoinstall" in line for line in found.cure.commands)


def test_silent_where_the_module_fits_or_nothing_is_known() -> None:
    broken = broken_driver.kernel_updated()
    silent = [
        workstation(),
        broken_driver.no_driver(),
        changed(broken, kernel__nvidia_module_on_disk=True),
        changed(broken, kernel__nvidia_module_on_disk=None),
        changed(broken, system__release=None),
        changed(broken, kernel__modules=None),
        changed(broken, gpus=()),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
