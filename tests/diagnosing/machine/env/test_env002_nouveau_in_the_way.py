from __future__ import annotations

from flatout.diagnosing.machine.env import env002_nouveau_in_the_way as checked
from flatout.nouns.finding import Severity
from machines import broken_driver, broken_ordinary
from machines.breaking import bus_only
from machines.healthy import changed, workstation


def test_bound_to_nouveau() -> None:
    (found,) = checked.check(broken_driver.nouveau())
    assert "at 0000:21:00.0" in found.evidence
    assert "nvidia.ko for this kernel: no" in found.evidence
    assert "blacklist nouveau" in found.cure.commands[0]
    assert "sudo tee /etc/modprobe.d/no-nouveau.conf" in found.cure.commands[0]
    assert any("dracut" in line for line in found.cure.commands)
    assert any("akmod-nvidia" in line for line in found.cure.commands)


def test_a_driver_that_is_there_is_not_installed_again() -> None:
    (found,) = checked.check(changed(broken_driver.nouveau(), kernel__nvidia_module_on_disk=True))
    assert not any("install" in line for line in found.cure.commands)
    assert found.cure.commands[-1] == "sudo reboot"


def test_loaded_while_no_driver_is_bound() -> None:
    machine = changed(broken_driver.nouveau(), gpus__0__kernel_driver=None)
    assert len(list(checked.check(machine))) == 1
    assert not list(checked.check(changed(machine, kernel__modules=("nouveau", "nvidia"))))
    assert not list(checked.check(changed(machine, kernel__modules=None)))


def test_beside_a_gpu_that_works_it_is_a_note() -> None:
    other = bus_only("nouveau", pci_address="0000:41:00.0")
    whole = workstation()
    (found,) = checked.check(changed(whole, gpus=(*(whole.gpus or ()), other)))
    assert found.severity is Severity.NOTE


def test_nixos_is_changed_in_its_configuration() -> None:
    (found,) = checked.check(broken_ordinary.nixos())
    assert not any("/etc/modprobe.d" in line for line in found.cure.commands)
    assert "sudo nixos-rebuild boot" in found.cure.commands
