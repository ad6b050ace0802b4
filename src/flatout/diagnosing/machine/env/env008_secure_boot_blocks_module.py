"""Secure Boot is on and blocks NVIDIA's module.

## What it sees

Secure Boot is on, `nvidia.ko` is there for the running kernel, and it is not loaded although an
NVIDIA GPU waits for it.

## Why it matters

With Secure Boot the kernel loads only modules that are signed with a key that the firmware or its
list of machine owner keys (MOK) knows. A module built on this machine by DKMS is signed with a key
of this machine, which must be enrolled once, at the console, during a restart. Until then modprobe
says "Key was rejected by service" or "Required key not available".

## Cure

Enroll the key that signed the module and confirm it in the blue screen of the next start; or use
the distribution's own signed modules; or switch Secure Boot off in the firmware.

## References

- https://wiki.ubuntu.com/UEFI/SecureBoot/DKMS
- https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV008", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if an installed module is not loaded."""
    there = machine.kernel.nvidia_module_on_disk is True
    if not machine.system.secure_boot or not there or not driver_state.module_missing(machine):
        return
    driver_facts = machine.driver("nvidia")
    version = driver_facts and (driver_facts.installed_version or driver_facts.library_version)
    place = target.of(machine)
    yield Diagnosis(
        title="Secure Boot blocks the NVIDIA module",
        evidence=f"Secure Boot: on; nvidia.ko {version or 'of unknown version'} is on disk for "
        f"kernel {machine.system.release or 'that runs'}; loaded modules: "
        f"{driver_state.modules(machine)}; waiting: "
        f"{driver_state.names(driver_state.waiting(machine))}",
        cure=Cure(
            "Enroll the key that signed the module: give a password of your choice, restart, and "
            "choose Enroll MOK in the blue screen (it needs a keyboard at the machine or its "
            "remote console). Or switch Secure Boot off in the firmware.",
            _commands(place),
        ),
    )


def _commands(place: Target) -> tuple[str, ...]:
    """Each distribution keeps the key that signs the module in its own place."""

    def admin(line: str) -> str:
        return system_packages.sudo(place, line)

    look = (
        "mokutil --sb-state",
        "modinfo -F signer nvidia",
        f"{admin('modprobe nvidia')} || {admin('dmesg')} | grep -iE 'nvidia|rejected' | tail",
    )
    reboot = admin("reboot")
    if "ubuntu" in (place.distribution, *place.distribution_like):
        return (*look, admin("update-secureboot-policy --enroll-key"), reboot)
    if place.distribution == "fedora":
        where = "# RPM Fusion's akmods; with DKMS the key is /var/lib/dkms/mok.pub"
        key = "/etc/pki/akmods/certs/public_key.der"
        return (*look, where, admin(f"mokutil --import {key}"), reboot)
    return (*look, admin("mokutil --import /var/lib/dkms/mok.pub"), reboot)
