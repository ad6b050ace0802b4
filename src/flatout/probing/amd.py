"""AMD's GPUs as the amdgpu driver shows them in /sys, and the installed ROCm."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import reading

ROOT = Path("/")
NAMES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""libdrm's lists of names by device and revision."""
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Node:
    """One GPU among the compute driver's nodes, in ROCm's order."""

    address: str
    gfx: str | None
    index: int
    gpu_id: int | None = None
    """KFD's own number for it, as in the names of its files."""


def from_sysfs(root: Path) -> tuple[Gpu, ...] | None:
    """The GPUs bound to amdgpu, or None if /sys cannot be read."""
    devices = cards(root)
    if devices is None:
        absent = reading.exists(root / "sys/class/drm") is False
        return () if absent and reading.entries(root / "sys/class") else None
    by_address = {node.address: node for node in reversed(nodes(root))}
    return tuple(_gpu(root, device, by_address) for device in devices)


def cards(root: Path) -> tuple[Path, ...] | None:
    """The devices of the cards that amdgpu drives (card0, ...), in order; None if not readable."""
    entries = reading.entries(root / "sys/class/drm")
    if entries is None:
        return None
    numbered = [card for card in entries if re.fullmatch(r"card[0-9]{1,6}", card.name)]
    numbered.sort(key=lambda card: int(card.name.removeprefix("card")))
    return tuple(
        device
        for device in (card / "device" for card in numbered)
        if reading.text(device / "vendor") == "0x1002"
        and reading.link_name(device / "driver") == "amdgpu"
    )


def asleep(device: Path) -> bool:
    """Whether reading its sensors would wake it, which is slow."""
    return reading.text(device / "power/runtime_status") == "suspended"


def _gpu(root: Path, device: Path, by_address: Mapping[str, Node]) -> Gpu:
    address = device.resolve().name.lower()
    node = by_address.get(address)
    number = reading.text(device / "device") or ""
    name = reading.text(device / "product_name")  # servers' boards have one of their own
    if not name:
        revision = (reading.text(device / "revision") or "").removeprefix("0x")
        lists = (reading.text(root / path) for path in NAMES)
        names = (from_list(text, number.removeprefix("0x"), revision) for text in lists if text)
        name = next((name for name in names if name), None)
    total = reading.number(device / "mem_info_vram_total")
    base = Gpu(
        vendor="amd",
        name=name,
        index=node.index if node else None,
        uuid=reading.text(device / "unique_id") or None,
        pci_address=address if ADDRESS.fullmatch(address) else None,
        pci_id=f"1002:{number[2:]}" if re.fullmatch(r"0x[0-9a-f]{4}", number) else None,
        driver_sees=True,
        kernel_driver="amdgpu",
        gfx=node.gfx if node else None,
        memory_bytes=total if total and total > 0 else None,
        memory_used_bytes=_not_negative(reading.number(device / "mem_info_vram_used")),
    )
    return base if asleep(device) else with_sensors(base, device)


def with_sensors(gpu: Gpu, device: Path) -> Gpu:
    """The GPU with what its sensors say now."""
    monitor = next(iter(reading.entries(device / "hwmon") or ()), device / "hwmon/none")
    busy = reading.number(device / "gpu_busy_percent")
    temperature, slowdown = _temperatures(monitor)
    sclk, mclk = _clocks(device / "pp_dpm_sclk"), _clocks(device / "pp_dpm_mclk")
    power = _watts(monitor / "power1_average")
    return replace(
        gpu,
        utilization=busy / 100 if busy is not None and 0 <= busy <= 100 else None,
        temperature_c=temperature,
        temperature_slowdown_c=slowdown,
        power_w=_watts(monitor / "power1_input") if power is None else power,
        power_limit_w=_watts(monitor / "power1_cap") or None,
        power_limit_default_w=_watts(monitor / "power1_cap_default") or None,
        power_limit_max_w=_watts(monitor / "power1_cap_max") or None,
        clock_sm_mhz=sclk[0],
        clock_sm_max_mhz=sclk[1],
        clock_memory_mhz=mclk[0],
        clock_memory_max_mhz=mclk[1],
    )


def _temperatures(monitor: Path) -> tuple[int | None, int | None]:
    """Current °C and slowdown limit of one sensor; an MI300 has no edge sensor.

    Old kernels have a single sensor without a name.
    """
    sensors = {reading.text(monitor / f"temp{index}_label"): index for index in (4, 3, 2, 1)}
    for label in ("edge", "junction", None):
        if label in sensors:
            now = reading.number(monitor / f"temp{sensors[label]}_input")
            limit = reading.number(monitor / f"temp{sensors[label]}_crit")
            if now is not None:
                return _degrees(now), _degrees(limit)
    return None, None


def _degrees(thousandths: int | None) -> int | None:
    if thousandths is None or not -50_000 < thousandths < 200_000:
        return None
    return round(thousandths / 1000)


def _watts(path: Path) -> float | None:
    millionths = _not_negative(reading.number(path))
    return None if millionths is None else millionths / 1e6


def _not_negative(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _clocks(path: Path) -> tuple[int | None, int | None]:
    """The current (starred) and highest clock in lines such as "1: 2100Mhz *"."""
    lines = re.findall(
        r"^(?:[0-9]+|S): ([0-9]{1,5})Mhz ?(\*?)$", reading.text(path) or "", re.I | re.M
    )
    now = next((int(clock) for clock, star in lines if star), None)
    return now, max((int(clock) for clock, _ in lines), default=None)


def nodes(root: Path) -> tuple[Node, ...]:
    """The GPUs of the compute driver (KFD) that this container may use."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    numbered = [entry for entry in reading.entries(folder) or () if entry.name.isdecimal()]
    gpu_nodes: list[Node] = []
    for entry in sorted(numbered, key=lambda entry: int(entry.name)):
        facts = properties(reading.text(entry / "properties") or "")
        if facts.get("simd_count") and "location_id" in facts:
            address = pci_address(facts.get("domain", 0), facts["location_id"])
            target, gpu_id = gfx(facts.get("gfx_target_version")), reading.number(entry / "gpu_id")
            gpu_nodes.append(Node(address, target, len(gpu_nodes), gpu_id))
    return tuple(gpu_nodes)


def properties(text: str) -> dict[str, int]:
    """The "name number" lines of a node."""
    pairs = re.findall(r"^(\w+) ([0-9]{1,20})$", text, re.ASCII | re.MULTILINE)
    return {name: int(value) for name, value in pairs}


def pci_address(domain: int, location: int) -> str:
    """The bus address from KFD's one number for bus, device and function."""
    bus, device, function = (location >> 8) & 0xFF, (location >> 3) & 0x1F, location & 7
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def gfx(version: int | None) -> str | None:
    """The compilers' name of a target: gfx942 for 90402, gfx90a for 90010, gfx1100 for 110000."""
    if version is None or not 60000 <= version < 1000000:
        return None
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if minor < 16 and stepping < 16 else None


def from_list(text: str, number: str, revision: str) -> str | None:
    """The name in amdgpu.ids, whose lines are "744C, C8, AMD Radeon RX 7900 XTX"."""
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and not line.startswith("#"):
            try:
                if (int(words[0], 16), int(words[1], 16)) == (int(number, 16), int(revision, 16)):
                    return words[2] or None
            except ValueError:
                continue
    return None


def driver_in(root: Path, environment: Mapping[str, str]) -> Driver | None:
    """The driver and ROCm, or None if no trace of either. The kernel's driver has no version."""
    loaded = reading.exists(root / "sys/module/amdgpu")
    release = rocm(root, environment)
    if not loaded and release is None:
        return None
    version = reading.text(root / "sys/module/amdgpu/version") or None
    return Driver(vendor="amd", version=version, kernel_version=version, rocm=release)


def rocm(root: Path, environment: Mapping[str, str]) -> str | None:
    """Release of ROCm on disk: at ROCM_PATH, in /opt/rocm, or the newest beside it."""
    configured = environment.get("ROCM_PATH", "").lstrip("/")
    folders = [root / configured] if configured else []
    folders.append(root / "opt/rocm")
    numbered = [entry for entry in reading.entries(root / "opt") or () if _release(entry.name[5:])]
    numbered.sort(key=lambda folder: [int(part) for part in folder.name[5:].split(".")])
    folders += reversed(numbered)
    for folder in folders:
        text = reading.text(folder / ".info/version") or ""
        if _release(text.split("-")[0]):
            return text.split("-")[0]
    return None


def _release(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}", text))


if sys.platform == "linux":

    def gpus(root: Path = ROOT) -> tuple[Gpu, ...] | None:
        """AMD's GPUs, or None if not readable."""
        return from_sysfs(root)

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """AMD's driver, or None if no trace of it. devices: its GPUs (unused)."""
        return driver_in(ROOT, os.environ)

else:

    def gpus(root: Path = ROOT) -> tuple[Gpu, ...] | None:
        """None: torch uses AMD's GPUs only on Linux, so nothing is queried elsewhere."""
        return None

    def driver(devices: tuple[Gpu, ...] | None = None) -> Driver | None:
        """None outside Linux."""
        return None
