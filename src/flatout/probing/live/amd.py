"""AMD's GPUs now, from the files of the amdgpu driver; no program is started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flatout.nouns.machine_sample import GpuSample
from flatout.probing import reading

VENDOR = "0x1002"
DRIVERS = ("amdgpu",)


def samples(cards: Iterable[Path], first_index: int = 0) -> tuple[GpuSample, ...]:
    """Each of these cards (folders of /sys/class/drm) now; numbered from `first_index` on."""
    return tuple(
        _sample(card / "device", first_index + number) for number, card in enumerate(cards)
    )


def _sample(device: Path, index: int) -> GpuSample:
    monitors = reading.entries(device / "hwmon") or ()
    monitor = next(iter(monitors), device / "hwmon")
    busy = reading.number(device / "gpu_busy_percent")
    return GpuSample(
        index=index,
        vendor="amd",
        name=reading.text(device / "product_name") or None,
        utilization=None if busy is None else min(1.0, busy / 100),
        memory_used_bytes=reading.number(device / "mem_info_vram_used"),
        memory_bytes=reading.number(device / "mem_info_vram_total"),
        power_w=_scaled(monitor / "power1_average", 1e6) or _scaled(monitor / "power1_input", 1e6),
        power_limit_w=_scaled(monitor / "power1_cap", 1e6),
        power_limit_default_w=_scaled(monitor / "power1_cap_default", 1e6),
        temperature_c=_scaled(monitor / "temp1_input", 1e3),
        clock_mhz=_scaled(monitor / "freq1_input", 1e6),
        fan=_fan(monitor),
    )


def _scaled(path: Path, unit: float) -> float | None:
    value = reading.number(path)
    return None if value is None else value / unit


def _fan(monitor: Path) -> float | None:
    now, most = reading.number(monitor / "fan1_input"), reading.number(monitor / "fan1_max")
    return now / most if now is not None and most else None
