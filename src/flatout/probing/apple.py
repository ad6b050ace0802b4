"""The GPU of an Apple chip, from sysctl; torch uses no GPU of older Macs."""

from __future__ import annotations

import platform
import sys

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import reading
from flatout.probing.program_answer import Ask, ask

SYSCTL = "/usr/sbin/sysctl"
SYSCTL_LIMIT_S = 1.0


def from_sysctl(brand: str, memory: str) -> tuple[Gpu, ...]:
    """The GPU of an Apple chip, with the chip's name and the machine's memory."""
    name = brand.strip()
    if name.startswith("VirtualApple"):  # this Python runs under Rosetta
        name = "Apple chip"
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


if sys.platform == "darwin":

    def gpus(runner: Ask = ask) -> tuple[Gpu, ...] | None:
        """The GPU of this Mac, or None if it is no Apple chip's."""
        name = runner([SYSCTL, "-n", "machdep.cpu.brand_string"], SYSCTL_LIMIT_S).text
        size = runner([SYSCTL, "-n", "hw.memsize"], SYSCTL_LIMIT_S).text
        return from_sysctl(name, size) or None

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
