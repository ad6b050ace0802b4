"""Apple's GPUs: from sysctl on Apple silicon, from the slow system_profiler on older Macs."""

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
    """The GPU of an Apple chip, with the chip's name and the machine's memory."""
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
        entries = json.loads(text)["SPDisplaysDataType"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(entries, list):
        return None
    candidates = (_display_gpu(entry) for entry in entries if isinstance(entry, dict))
    return tuple(gpu for gpu in candidates if gpu is not None)


def _display_gpu(entry: dict[str, object]) -> Gpu | None:
    model = entry.get("sppci_model")
    name = model if isinstance(model, str) and model else None
    vendor = _vendor(str(entry.get("spdisplays_vendor", "")), name or "")
    if vendor is None:
        return None
    dedicated, shared = entry.get("spdisplays_vram"), entry.get("spdisplays_vram_shared")
    unspecified = entry.get("_spdisplays_vram")
    is_shared = vendor == "apple" or (dedicated is None and shared is not None)
    return Gpu(
        vendor=vendor,
        name=name,
        driver_sees=True if vendor == "apple" else None,
        memory_bytes=_size(dedicated) or _size(shared) or _size(unspecified),
        shared_memory=True if is_shared else False if dedicated is not None else None,
    )


def _vendor(description: str, name: str) -> Vendor | None:
    """The vendor in "AMD (0x1002)", "sppci_vendor_Apple" or the name's first word."""
    number = re.search(r"0x[0-9a-f]{4}", description.lower())
    if number:
        return VENDORS.get(number[0])
    words = f"{description.removeprefix('sppci_vendor_')} {name}".lower().split()
    return next((NAMES[word] for word in words if word in NAMES), None)


def _size(text: object) -> int | None:
    """Bytes from "8 GB" or "1536 MB"."""
    match = re.fullmatch(r"([0-9]{1,7}) (MB|GB)", text) if isinstance(text, str) else None
    return int(match[1]) * UNITS[match[2]] or None if match else None


if sys.platform == "darwin":

    def gpus(runner: Ask = ask) -> tuple[Gpu, ...] | None:
        """The GPUs of this Mac, or None if neither tool answered."""
        name = runner([SYSCTL, "-n", "machdep.cpu.brand_string"], SYSCTL_LIMIT_S).text
        size = runner([SYSCTL, "-n", "hw.memsize"], SYSCTL_LIMIT_S).text
        chip = from_sysctl(name, size)
        return chip or from_profiler(runner(PROFILER, PROFILER_LIMIT_S).text)

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """Metal, with the version of macOS, of which it is a part. devices: this Mac's GPUs."""
        if not any(gpu.vendor == "apple" for gpu in devices or ()):
            return None
        return Driver(vendor="apple", version=platform.mac_ver()[0] or None)

else:

    def gpus(runner: Ask = ask) -> tuple[Gpu, ...] | None:
        """None: only Macs have Apple GPUs."""
        return None

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """None: other systems have no Apple driver."""
        return None
