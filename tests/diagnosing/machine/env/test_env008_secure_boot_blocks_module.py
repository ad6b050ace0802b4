from __future__ import annotations

from flatout.diagnosing.machine.env import env008_secure_boot_blocks_module as checked
from machines import broken_driver
from machines.healthy import changed, workstation


def test_the_key_was_never_enrolled() -> None:
    (found,) = checked.check(broken_driver.secure_boot())
    assert "Secure Boot: on" in found.evidence
    assert "580.95.05" in found.evidence
    assert "sudo update-secureboot-policy --enroll-key" in found.cure.commands
    assert found.cure.commands[-1] == "sudo reboot"


def test_each_distribution_keeps_its_key_elsewhere() -> None:
    other = {"system__distribution_like": ()}
    fedora = changed(broken_driver.secure_boot(), system__distribution="fedora", **other)
    (found,) = checked.check(fedora)
    assert "sudo mokutil --import /etc/pki/akmods/certs/public_key.der" in found.cure.commands
    debian = changed(broken_driver.secure_boot(), system__distribution="debian", **other)
    (found,) = checked.check(debian)
    assert "sudo mokutil --import /var/lib/dkms/mok.pub" in found.cure.commands


def test_silent_where_secure_boot_is_not_the_cause() -> None:
    broken = broken_driver.secure_boot()
    silent = [
        changed(workstation(), system__secure_boot=True),
        changed(broken, system__secure_boot=False),
        changed(broken, system__secure_boot=None),
        changed(broken, kernel__nvidia_module_on_disk=False),
        changed(broken, kernel__nvidia_module_on_disk=None),
        changed(broken, gpus__0__kernel_driver="nouveau"),
        changed(broken, container__kind="docker"),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
