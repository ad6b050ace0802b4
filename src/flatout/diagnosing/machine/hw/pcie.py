"""Shared by the checks of PCIe links."""

from __future__ import annotations

from flatout.installing import system_packages, target
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine


def look(machine: Machine, gpu: Gpu) -> tuple[str, ...]:
    """The line that shows the links that card and slot support and the one in use."""
    if machine.system.name != "Linux" or gpu.pci_address is None:
        return ()
    lspci = system_packages.sudo(target.of(machine), f"lspci -vv -s {gpu.pci_address}")
    return (f"{lspci} | grep -E 'LnkCap:|LnkSta:'",)
