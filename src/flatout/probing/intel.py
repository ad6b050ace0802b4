"""Intel's GPUs as the i915 and xe drivers show them in /sys; xpu-smi, where it is, knows names."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import reading
from flatout.probing.program_answer import Ask, ask

ROOT = Path("/")
DRIVERS = ("i915", "xe")
XPU_SMI = ("xpu-smi", "discovery", "-j")
LIMIT_S = 1.0
LEAST_BYTES = 1 << 20
"""Of a card's memory; what tells less tells something else."""
INTEGRATED = "0000:00:02.0"
"""Where Intel's processors have had their own GPU for two decades."""


def from_sysfs(root: Path, asking: Ask = ask) -> tuple[Gpu, ...] | None:
    """The GPUs that one of Intel's drivers holds; None: /sys cannot be read."""
    cards = reading.entries(root / "sys/class/drm")
    if cards is None:
        absent = reading.exists(root / "sys/class/drm") is False
        return () if absent and reading.entries(root / "sys/class") else None
    found = [_gpu(card) for card in cards if re.fullmatch(r"card[0-9]+", card.name)]
    return _with_names(tuple(gpu for gpu in found if gpu is not None), asking)


def _gpu(card: Path) -> Gpu | None:
    device = card / "device"
    driver = reading.link_name(device / "driver")
    if reading.text(device / "vendor") != "0x8086" or driver not in DRIVERS:
        return None
    address = device.resolve().name.lower()
    number = reading.text(device / "device") or ""
    memory = own_memory(card)
    shared = False if memory else True if address == INTEGRATED else None
    return Gpu(
        vendor="intel",
        pci_address=address if re.fullmatch(r"[0-9a-f:]{10,14}\.[0-7]", address) else None,
        pci_id=f"8086:{number[2:]}" if re.fullmatch(r"0x[0-9a-f]{4}", number) else None,
        driver_sees=True,
        kernel_driver=driver,
        memory_bytes=memory,
        shared_memory=shared,
    )


def own_memory(card: Path) -> int | None:
    """Memory on the card: xe tells it for each tile, i915 only as Intel packages it (not as it is
    in the kernel itself).
    """
    whole = reading.number(card / "lmem_total_bytes")
    if whole is not None and whole >= LEAST_BYTES:
        return whole
    tiles = [
        reading.number(entry / "physical_vram_size_bytes")
        for entry in reading.entries(card / "device") or ()
        if re.fullmatch(r"tile[0-9]+", entry.name)
    ]
    sizes = [size for size in tiles if size is not None and size >= LEAST_BYTES]
    return sum(sizes) if sizes and len(sizes) == len(tiles) else None


def _with_names(found: tuple[Gpu, ...], asking: Ask) -> tuple[Gpu, ...]:
    if all(gpu.shared_memory for gpu in found):  # xpu-smi is about cards, and takes its time
        return found
    names = from_xpu_smi(asking(XPU_SMI, LIMIT_S).text)
    return tuple(replace(gpu, name=names.get(gpu.pci_address or "")) for gpu in found)


def from_xpu_smi(text: str) -> dict[str, str]:
    """Bus address -> name."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    listed = told.get("device_list") if isinstance(told, dict) else None
    found = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            address, name = entry.get("pci_bdf_address"), entry.get("device_name")
            if isinstance(address, str) and isinstance(name, str) and name:
                found[address.lower()] = name
    return found


def driver_in(root: Path) -> Driver | None:
    """The driver that holds a GPU, or else is loaded; one of the kernel's own has no version."""
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

    def gpus(root: Path = ROOT, asking: Ask = ask) -> tuple[Gpu, ...] | None:
        """Intel's GPUs; None: not readable."""
        return from_sysfs(root, asking)

    def driver(found: tuple[Gpu, ...] | None = None) -> Driver | None:
        """Intel's driver; None: no trace of it. found: its GPUs (they add nothing)."""
        return driver_in(ROOT)

else:

    def gpus(root: Path = ROOT, asking: Ask = ask) -> tuple[Gpu, ...] | None:
        """None: outside of Linux the bus (Windows' registry) tells what is known."""
        return None

    def driver(found: tuple[Gpu, ...] | None = None) -> Driver | None:
        """Nothing is asked outside of Linux."""
        return None
