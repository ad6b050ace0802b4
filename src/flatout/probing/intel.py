"""Intel's GPUs as the drivers i915 and xe show them in /sys, which has no names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import reading

ROOT = Path("/")
DRIVERS = ("i915", "xe")
LEAST_BYTES = 1 << 20
"""Least plausible bytes of a card's memory; a smaller number means something else."""
INTEGRATED = "0000:00:02.0"
"""Bus address at which Intel's processors have had their own GPU for two decades."""


def from_sysfs(root: Path) -> tuple[Gpu, ...] | None:
    """The GPUs bound to one of Intel's drivers, or None if /sys cannot be read."""
    cards = reading.entries(root / "sys/class/drm")
    if cards is None:
        absent = reading.exists(root / "sys/class/drm") is False
        return () if absent and reading.entries(root / "sys/class") else None
    found = []
    for card in cards:
        if not re.fullmatch(r"card[0-9]+", card.name):
            continue
        device = card / "device"
        driver = reading.link_name(device / "driver")
        if reading.text(device / "vendor") != "0x8086" or driver not in DRIVERS:
            continue
        address = device.resolve().name.lower()
        number = reading.text(device / "device") or ""
        memory = own_memory(card)
        found.append(
            Gpu(
                vendor="intel",
                pci_address=address if re.fullmatch(r"[0-9a-f:]{10,14}\.[0-7]", address) else None,
                pci_id=f"8086:{number[2:]}" if re.fullmatch(r"0x[0-9a-f]{4}", number) else None,
                driver_sees=True,
                kernel_driver=driver,
                memory_bytes=memory,
                shared_memory=False if memory else True if address == INTEGRATED else None,
            )
        )
    return tuple(found)


def own_memory(card: Path) -> int | None:
    """Bytes of memory on the card. xe lists it per tile; i915 only in Intel's own packages, not
    in the kernel's version.
    """
    total = reading.number(card / "lmem_total_bytes")
    if total is not None and total >= LEAST_BYTES:
        return total
    tiles = [
        reading.number(entry / "physical_vram_size_bytes")
        for entry in reading.entries(card / "device") or ()
        if re.fullmatch(r"tile[0-9]+", entry.name)
    ]
    sizes = [size for size in tiles if size is not None and size >= LEAST_BYTES]
    return sum(sizes) if sizes and len(sizes) == len(tiles) else None


def driver_in(root: Path) -> Driver | None:
    """The loaded driver; the kernel's own one has no version."""
    versions = [
        reading.text(root / f"sys/module/{name}/version") or None
        for name in DRIVERS
        if reading.exists(root / f"sys/module/{name}")
    ]
    if not versions:
        return None
    version = next((version for version in versions if version), None)
    return Driver(vendor="intel", version=version, kernel_version=version)


if sys.platform == "linux":

    def gpus(root: Path = ROOT) -> tuple[Gpu, ...] | None:
        """Intel's GPUs, or None if not readable."""
        return from_sysfs(root)

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """Intel's driver, or None if no trace of it. devices: its GPUs (unused)."""
        return driver_in(ROOT)

else:

    def gpus(root: Path = ROOT) -> tuple[Gpu, ...] | None:
        """None: outside Linux the bus (Windows' registry) lists the GPUs."""
        return None

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """None outside Linux."""
        return None
