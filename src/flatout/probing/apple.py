"""Apple's GPUs: from sysctl on Apple silicon; the slow system_profiler only on older Macs."""

from __future__ import annotations

import json
import platform
import re
import sys

from flatout.nouns.gpu import Driver, Gpu, Vendor
from flatout.probing import reading
from flatout.probing.program_answer import Ask, ask

SYSCTL = "/usr/sbin/sysctl"
PROFILER = ["/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"]
SYSCTL_LIMIT_S = 1.0
PROFILER_LIMIT_S = 2.0
VENDORS: dict[str, Vendor] = {
    "0x1002": "amd",
    "0x10de": "nvidia",
    "0x8086": "intel",
    "0x106b": "apple",
}
NAMES: dict[str, Vendor] = {
    "amd": "amd",
    "ati": "amd",
    "nvidia": "nvidia",
    "intel": "intel",
    "apple": "apple",
}
UNITS = {"MB": 2**20, "GB": 2**30}


def from_sysctl(brand: str, memory: str) -> tuple[Gpu, ...]:
    """The GPU of an Apple chip; it has the chip's name and the machine's memory."""
    name = brand.strip()
    if not name.startswith("Apple "):
        return ()
    size = reading.whole(memory.strip())
    chip = Gpu(
        vendor="apple",
        name=name,
        index=0,
        driver_sees=True,
        memory_bytes=size if size and size > 0 else None,
        shared_memory=True,
    )
    return (chip,)


def from_profiler(text: str) -> tuple[Gpu, ...] | None:
    """The GPUs of an older Mac, from system_profiler's JSON."""
    try:
        listed = json.loads(text)["SPDisplaysDataType"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    found = (_profiled(entry) for entry in listed if isinstance(entry, dict))
    return tuple(gpu for gpu in found if gpu is not None)


def _profiled(entry: dict[str, object]) -> Gpu | None:
    model = entry.get("sppci_model")
    name = model if isinstance(model, str) and model else None
    vendor = _vendor(str(entry.get("spdisplays_vendor", "")), name or "")
    if vendor is None:
        return None
    own, shared = entry.get("spdisplays_vram"), entry.get("spdisplays_vram_shared")
    either = entry.get("_spdisplays_vram")
    divided = vendor == "apple" or (own is None and shared is not None)
    return Gpu(
        vendor=vendor,
        name=name,
        driver_sees=True if vendor == "apple" else None,
        memory_bytes=_size(own) or _size(shared) or _size(either),
        shared_memory=True if divided else False if own is not None else None,
    )


def _vendor(told: str, name: str) -> Vendor | None:
    """From "AMD (0x1002)", "sppci_vendor_Apple" or the first word of the name."""
    number = re.search(r"0x[0-9a-f]{4}", told.lower())
    if number:
        return VENDORS.get(number[0])
    words = f"{told.removeprefix('sppci_vendor_')} {name}".lower().split()
    return next((NAMES[word] for word in words if word in NAMES), None)


def _size(told: object) -> int | None:
    """Out of "8 GB" or "1536 MB" the bytes."""
    found = re.fullmatch(r"([0-9]{1,7}) (MB|GB)", told) if isinstance(told, str) else None
    return int(found[1]) * UNITS[found[2]] or None if found else None


if sys.platform == "darwin":

    def gpus(asking: Ask = ask) -> tuple[Gpu, ...] | None:
        """The GPUs of this Mac; None: neither tool answered."""
        name = asking([SYSCTL, "-n", "machdep.cpu.brand_string"], SYSCTL_LIMIT_S).text
        size = asking([SYSCTL, "-n", "hw.memsize"], SYSCTL_LIMIT_S).text
        chip = from_sysctl(name, size)
        return chip or from_profiler(asking(PROFILER, PROFILER_LIMIT_S).text)

    def driver(found: tuple[Gpu, ...] | None = None) -> Driver | None:
        """Metal is part of macOS and has its version. found: this Mac's GPUs."""
        if not any(gpu.vendor == "apple" for gpu in found or ()):
            return None
        return Driver(vendor="apple", version=platform.mac_ver()[0] or None)

else:

    def gpus(asking: Ask = ask) -> tuple[Gpu, ...] | None:
        """None: only Macs have Apple's GPUs, and nothing was asked."""
        return None

    def driver(found: tuple[Gpu, ...] | None = None) -> Driver | None:
        """No trace of Apple's driver on other systems."""
        return None
