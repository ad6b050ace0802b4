"""An IOMMU translates between GPUs that have no NVLink: copies between them are slow, or hang.

## What it sees

Several GPUs of one vendor, no NVLink between any two of them, on Linux on bare metal with an IOMMU
that translates.

## Why it matters

Copies from GPU to GPU should go straight over PCIe. With a translating IOMMU (and ACS) they go up
to the processor and back, at a fraction of the speed, and NCCL has been seen to hang.

## Cure

Boot with iommu=pt (passthrough), or switch the IOMMU off in the firmware if no virtual machine
needs it.

## References

- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_metal
from flatout.installing import system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV071", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the machine."""
    pairs = machine.gpu_pairs or ()
    if machine.kernel.iommu is not True or not on_metal(machine) or not pairs:
        return
    if machine.container.virtual_machine is not None:
        return
    if any(pair.link == "nvlink" for pair in pairs):
        return
    count = max(len(machine.gpus_of(vendor)) for vendor in ("nvidia", "amd"))
    if count < 2:
        return
    links = ", ".join(
        f"{number} by {link}" for link, number in Counter(pair.link for pair in pairs).items()
    )
    yield Diagnosis(
        title=f"an IOMMU stands between {count} GPUs without NVLink",
        evidence=f"{count} GPUs, pairs: {links}; the IOMMU translates (not in passthrough)",
        cure=Cure(
            "Boot with iommu=pt, then measure again; if copies stay slow, switch IOMMU or ACS off "
            "in the firmware. Leave it where GPUs are passed to virtual machines.",
            _commands(target.of(machine)),
        ),
    )


def _commands(place: Target) -> tuple[str, ...]:
    manager = system_packages.package_manager(place)
    if manager == "dnf":
        lines = ["grubby --update-kernel=ALL --args=iommu=pt", "reboot"]
    else:
        edit = 's/^GRUB_CMDLINE_LINUX="/&iommu=pt /'
        make = "update-grub" if manager == "apt" else "grub-mkconfig -o /boot/grub/grub.cfg"
        if manager == "zypper":
            make = "grub2-mkconfig -o /boot/grub2/grub.cfg"
        lines = [f"sed -i.bak '{edit}' /etc/default/grub", make, "reboot"]
    return tuple(system_packages.sudo(place, line) for line in lines)
