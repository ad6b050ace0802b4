"""AMD's GPUs now, from the files of the amdgpu driver; no program is started.

The compute driver (KFD) reports the programs that compute on them and their memory, in a file
`vram_<GPU's id>` (bytes) for each process. Its process numbers are the machine's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing import amd, reading
from flatout.probing.live.pids import alive

VENDOR = "0x1002"
DRIVER = "amdgpu"
CARDS_EVERY_S = 10.0
"""Cards are looked for anew: drivers may be reloaded."""
PROCESSES_EVERY_S = 10.0
CHIP = ("edge", "junction")
"""Sensors of the chip, preferred first; an MI300 has no edge sensor."""
SENSORS = range(1, 5)


class AmdSampler:
    """The GPUs that amdgpu drives; a sleeping GPU is not woken. root: of /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cards: tuple[Path, ...] = ()
        self._cards_s: float | None = None
        self._uses: dict[str, tuple[GpuUse, ...]] | None = None
        self._uses_s: float | None = None

    def samples(self, now_s: float, first_index: int = 0) -> tuple[GpuSample, ...]:
        """Each GPU now, numbered from `first_index`. now_s: of a clock that only goes forward."""
        if self._cards_s is None or now_s - self._cards_s >= CARDS_EVERY_S:
            self._cards_s, self._cards = now_s, _cards(self._root)
        if self._cards and (self._uses_s is None or now_s - self._uses_s >= PROCESSES_EVERY_S):
            self._uses_s, self._uses = now_s, _uses(self._root)
        return tuple(
            self._sample(card / "device", first_index + number)
            for number, card in enumerate(self._cards)
        )

    def _sample(self, device: Path, index: int) -> GpuSample:
        address = device.resolve().name.lower()
        asleep = reading.text(device / "power/runtime_status") == "suspended"
        monitors = reading.entries(device / "hwmon") or ()
        monitor = device / "hwmon/none" if asleep else next(iter(monitors), device / "hwmon/none")
        busy = 0 if asleep else reading.number(device / "gpu_busy_percent")
        return GpuSample(
            index=index,
            vendor="amd",
            name=reading.text(device / "product_name") or None,
            utilization=None if busy is None else max(0.0, min(1.0, busy / 100)),
            memory_used_bytes=reading.number(device / "mem_info_vram_used"),
            memory_bytes=reading.number(device / "mem_info_vram_total"),
            power_w=_scaled(monitor / "power1_average", 1e6)
            or _scaled(monitor / "power1_input", 1e6),
            power_limit_w=_scaled(monitor / "power1_cap", 1e6),
            power_limit_default_w=_scaled(monitor / "power1_cap_default", 1e6),
            temperature_c=_temperature(monitor),
            clock_mhz=_scaled(monitor / "freq1_input", 1e6),
            fan=_fan(monitor),
            processes=None if self._uses is None else self._uses.get(address, ()),
        )


def _cards(root: Path) -> tuple[Path, ...]:
    """The folders of the cards that amdgpu drives (card0, ...), in order."""
    entries = reading.entries(root / "sys/class/drm") or ()
    cards = [card for card in entries if re.fullmatch(r"card[0-9]{1,6}", card.name)]
    driven = (
        card
        for card in cards
        if reading.text(card / "device/vendor") == VENDOR
        and reading.link_name(card / "device/driver") == DRIVER
    )
    return tuple(sorted(driven, key=lambda card: int(card.name.removeprefix("card"))))


def _uses(root: Path) -> dict[str, tuple[GpuUse, ...]] | None:
    """The processes that compute, by the GPU's address, or None without a compute driver."""
    folders = reading.entries(root / "sys/class/kfd/kfd/proc")
    if folders is None:
        return None
    nodes = [node for node in amd.nodes(root) if node.gpu_id is not None]
    found: dict[str, list[GpuUse]] = {node.address: [] for node in nodes}
    for folder in folders:
        pid = reading.whole(folder.name)
        for node in nodes if pid is not None else ():
            size = reading.number(folder / f"vram_{node.gpu_id}")
            if pid is not None and size:
                found[node.address].append(GpuUse(pid, size, alive=alive(pid)))
    return {address: tuple(uses) for address, uses in found.items()}


def _temperature(monitor: Path) -> float | None:
    """°C of the chip."""
    labels = {reading.text(monitor / f"temp{number}_label"): number for number in SENSORS}
    for label in (*CHIP, None):  # old kernels have a single sensor without a name
        if label in labels:
            value = _scaled(monitor / f"temp{labels[label] if label else 1}_input", 1e3)
            if value is not None:
                return value
    return None


def _scaled(path: Path, unit: float) -> float | None:
    value = reading.number(path)
    return None if value is None or value < 0 else value / unit


def _fan(monitor: Path) -> float | None:
    now, most = reading.number(monitor / "fan1_input"), reading.number(monitor / "fan1_max")
    return min(1.0, now / most) if now is not None and most else None
