"""Intel's GPUs now, from the files of i915 and xe and of the programs that use them.

Reading clocks, throttling, power and temperature wakes a card, so it is first seen whether it
sleeps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatout.nouns.gpu import Gpu
from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing import intel, reading
from flatout.probing.live.cards import DriverCards
from flatout.probing.live.drm_clients import DrmClients, DrmUse
from flatout.probing.program_answer import Ask, ask

VENDOR = "0x8086"
SLOW_EVERY_S = 10.0
COMPUTE = frozenset({"compute", "ccs"})
"""Classes of engines on which kernels run, by the names of i915 and xe."""
ENGINES = COMPUTE | {"render", "rcs"}
"""Engines that count as busy, without those for video and copies."""
OWN = re.compile(r"(vram|local)[0-9]*")
SHARED = re.compile(r"gtt|system[0-9]+")
"""Memory regions on the card, and those of the host that the GPU can reach."""
ASLEEP = 0.98
"""Share of time asleep from which nothing counts as running, apart from brief wake-ups."""

LEAST_S = 0.05
"""Least seconds between two readings for a meaningful rate."""
DRIVERS = ("i915", "xe")
REASONS = {
    "pl1": "sw_power_cap",
    "pl2": "sw_power_cap",
    "pl4": "sw_power_cap",
    "psys_pl1": "sw_power_cap",
    "psys_pl2": "sw_power_cap",
    "psys_crit": "sw_power_cap",
    "iccmax": "sw_power_cap",
    "vr_tdc": "sw_power_cap",
    "fastvmode": "sw_power_cap",
    "thermal": "sw_thermal_slowdown",
    "soc_thermal": "sw_thermal_slowdown",
    "soc_avg_thermal": "sw_thermal_slowdown",
    "mem_thermal": "sw_thermal_slowdown",
    "ratl": "sw_thermal_slowdown",
    "vr_thermal": "hw_thermal_slowdown",
    "vr_thermalert": "hw_thermal_slowdown",
    "prochot": "hw_slowdown",
}
"""The drivers' reasons -> NVML's names, without p0_freq, the clocks' unchanged setting."""


@dataclass(frozen=True)
class _Files:
    """The files of one part of the card (GT), by their paths in its folder."""

    clock: str
    wanted: str
    """The requested clock, used if the actual one cannot be read."""
    most: tuple[str, ...]
    throttled: str
    reason: str
    idle: str
    """Milliseconds that it has slept."""


XE = _Files(
    clock="freq0/act_freq",
    wanted="freq0/cur_freq",
    most=("freq0/rp0_freq", "freq0/max_freq"),
    throttled="freq0/throttle/status",
    reason="freq0/throttle/reason_",
    idle="gtidle/idle_residency_ms",
)
I915 = _Files(
    clock="rps_act_freq_mhz",
    wanted="rps_cur_freq_mhz",
    most=("rps_RP0_freq_mhz", "rps_max_freq_mhz"),
    throttled="throttle_reason_status",
    reason="throttle_reason_",
    idle="rc6_residency_ms",
)
OLD_I915 = _Files(
    clock="gt_act_freq_mhz",
    wanted="gt_cur_freq_mhz",
    most=("gt_RP0_freq_mhz", "gt_max_freq_mhz"),
    throttled="none",
    reason="none",
    idle="power/rc6_residency_ms",
)
"""Before Linux 5.19, in the card's own folder."""


class IntelSensors:
    """One card, polled repeatedly. card: its folder in /sys/class/drm."""

    def __init__(self, card: Path) -> None:
        self._parts, self._files = _parts(card)
        self._monitor = _monitor(card)
        self._before: dict[str, tuple[float, float]] = {}
        """(seconds, value) of each growing counter."""
        self.idle: float | None = None
        """Share of the time since the last reading in which the GPU slept, 0 to 1."""

    def read(self, now_s: float) -> dict[str, Any]:
        """Values by the names of `GpuSample`; `now_s` is of a clock that only goes forward."""
        self.idle = self._idle(now_s)
        return {
            "clock_mhz": self._clock(self._files.clock, self._files.wanted),
            "clock_max_mhz": self._clock(*self._files.most),
            "throttles": self._throttles(),
            "power_w": self._power(now_s),
            "power_limit_w": self._watts("max"),
            "power_limit_default_w": self._watts("rated_max"),
            "temperature_c": self._temperature(),
        }

    def _clock(self, *names: str) -> float | None:
        """The highest MHz of its parts; 0 while all of them sleep."""
        found = []
        for part in self._parts:
            values = (reading.number(part / name) for name in names)
            found += [value for value in values if value is not None and value >= 0][:1]
        return float(max(found)) if found else None

    def _throttles(self) -> tuple[str, ...] | None:
        reasons: dict[str, None] = {}
        known = False
        for part in self._parts:
            status = reading.number(part / self._files.throttled)
            known = known or status is not None
            for name, word in REASONS.items() if status else ():
                if reading.number(part / f"{self._files.reason}{name}") == 1:
                    reasons[word] = None
        return tuple(reasons) if known else None

    def _power(self, now_s: float) -> float | None:
        """Mean W since the last reading, of the card, else of its chip."""
        growths = []
        for channel in (1, 2):
            name = f"energy{channel}_input"
            millionths = reading.number(self._monitor / name)
            growths.append(self._growth(name, millionths, now_s))
        per_s = next((growth for growth in growths if growth), None)
        return None if per_s is None else per_s / 1e6

    def _watts(self, kind: str) -> float | None:
        """A limit in W of the same channel, or None if switched off (it reads 0)."""
        values = (reading.number(self._monitor / f"power{channel}_{kind}") for channel in (1, 2))
        millionths = next((value for value in values if value and value > 0), None)
        return None if millionths is None else millionths / 1e6

    def _temperature(self) -> float | None:
        """°C of the chip, else of another place on the card."""
        found: dict[str, int] = {}
        for channel in range(1, 5):
            value = reading.number(self._monitor / f"temp{channel}_input")
            if value is not None and 0 < value < 200_000:
                label = reading.text(self._monitor / f"temp{channel}_label")
                found.setdefault(label or f"{channel}", value)
        values = [found["pkg"]] if "pkg" in found else list(found.values())
        return values[0] / 1000 if values else None

    def _idle(self, now_s: float) -> float | None:
        """The sleeping share of the part that slept least."""
        shares = []
        for part in self._parts:
            file = part / self._files.idle
            grown = self._growth(str(file), reading.number(file), now_s)
            if grown is None:
                return None
            shares.append(min(1.0, grown / 1000))
        return min(shares, default=None)

    def _growth(self, name: str, value: float | None, now_s: float) -> float | None:
        """Growth per second since the last reading, or None if unknown."""
        if value is None:
            self._before.pop(name, None)
            return None
        before = self._before.get(name)
        if before is not None and now_s - before[0] < LEAST_S:
            return None
        self._before[name] = now_s, value
        if before is None or value < before[1]:
            return None
        return (value - before[1]) / (now_s - before[0])


class IntelSampler:
    """The GPUs of i915 or xe. root: of /proc and /sys. runner: asks xpu-smi for names.

    A sleeping GPU is not woken. A GPU without visible programs is read every ten seconds, so that
    it can fall asleep. A processor's own GPU is shown only if it is the only one or once a program
    has computed on it.
    """

    def __init__(self, root: Path, runner: Ask = ask) -> None:
        self._root, self._runner = root, runner
        self._cards = DriverCards(root, VENDOR, intel.DRIVERS)
        self._clients = DrmClients(root, intel.DRIVERS)
        self._found: tuple[Path, ...] = ()
        self._folders: dict[str, Path] = {}
        self._facts: dict[str, Gpu] = {}
        self._sensors: dict[str, IntelSensors] = {}
        self._sensed: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {}
        """The last two times that the sensors were read, and their last values."""
        self._computed: set[str] = set()

    def samples(self, now_s: float, first_index: int = 0) -> tuple[GpuSample, ...]:
        """Each GPU now, numbered from `first_index`, the number of the machine's other GPUs."""
        cards = self._cards.now(now_s)
        if cards != self._found:
            self._learn(cards)
        if not cards:
            return ()
        asleep = {name for name, card in self._folders.items() if _sleeps(card)}
        uses: dict[str, list[DrmUse]] = {name: [] for name in self._folders}
        for use in self._clients.uses(now_s, asleep):
            uses.setdefault(use.address, []).append(use)
            if use.used & COMPUTE:
                self._computed.add(use.address)
        return tuple(
            self._sample(name, first_index + number, uses[name], now_s, name in asleep)
            for number, name in enumerate(self._shown(first_index))
        )

    def _learn(self, cards: tuple[Path, ...]) -> None:
        """Read names and sizes, once for the same cards."""
        self._found = cards
        self._folders = {(card / "device").resolve().name.lower(): card for card in cards}
        gpus = (intel.from_sysfs(self._root, self._runner) or ()) if cards else ()
        self._facts = {gpu.pci_address or "": gpu for gpu in gpus}
        self._sensors = {name: IntelSensors(card) for name, card in self._folders.items()}
        self._sensed = {}

    def _shown(self, others: int) -> list[str]:
        """Addresses, cards first: a processor's own GPU that appears later renumbers none."""
        own = [name for name in self._folders if self._is_processors(name)]
        cards = [name for name in self._folders if name not in own]
        alone = not others and not cards
        return cards + [name for name in own if alone or name in self._computed]

    def _is_processors(self, name: str) -> bool:
        return name in self._facts and bool(self._facts[name].shared_memory)

    def _sample(
        self, name: str, index: int, uses: list[DrmUse], now_s: float, asleep: bool
    ) -> GpuSample:
        gpu = self._facts.get(name) or Gpu(vendor="intel")
        sample = GpuSample(
            index=index,
            vendor="intel",
            name=gpu.name,
            utilization=0.0 if asleep else None,
            memory_used_bytes=self._used_bytes(name, gpu.memory_bytes, uses),
            memory_bytes=gpu.memory_bytes,
            processes=_processes(uses) if self._clients.complete else None,
        )
        if asleep:
            return sample
        sensed = self._sense(name, now_s, bool(uses))
        busy = busiest(uses)
        if busy is None and (self._sensors[name].idle or 0.0) >= ASLEEP:
            busy = 0.0  # other users' programs are invisible, but nothing ran while it slept
        return replace(sample, utilization=busy, **sensed)

    def _sense(self, name: str, now_s: float, is_used: bool) -> dict[str, Any]:
        times, values = self._sensed.get(name, ((), {}))
        # Rates are known from the second reading.
        if len(times) < 2 or is_used or now_s - times[-1] >= SLOW_EVERY_S:
            times, values = (*times[-1:], now_s), self._sensors[name].read(now_s)
            self._sensed[name] = times, values
        return values

    def _used_bytes(self, name: str, total: int | None, uses: list[DrmUse]) -> int | None:
        """Bytes used on the whole card by the driver, else the sum of visible clients."""
        free = reading.number(self._folders[name] / "lmem_avail_bytes")
        if total is not None and free is not None and 0 <= free <= total:
            return total - free
        used = memory(uses)
        return used if used is None or total is None else min(used, total)


def _sleeps(card: Path) -> bool:
    return reading.text(card / "device/power/runtime_status") == "suspended"


def busiest(uses: Iterable[DrmUse]) -> float | None:
    """These clients' share of the time of their busiest class of engines, 0 to 1."""
    sums: dict[str, float] = {}
    for use in uses:
        for name in ENGINES & use.busy.keys():
            sums[name] = sums.get(name, 0.0) + use.busy[name]
    return min(1.0, max(sums.values())) if sums else None


def memory(uses: Collection[DrmUse]) -> int | None:
    """Bytes on the card, or on the host if it has no memory of its own."""
    for regions in (OWN, SHARED):
        sizes = [size for use in uses for size in _sizes(use.memory, regions)]
        if sizes:
            return sum(sizes)
    return None


def _sizes(regions: Mapping[str, int], wanted: re.Pattern[str]) -> list[int]:
    return [size for region, size in regions.items() if wanted.fullmatch(region)]


def _processes(uses: Iterable[DrmUse]) -> tuple[GpuUse, ...]:
    """Processes that have computed; the many that only draw windows are no jobs."""
    by_pid: dict[int, list[DrmUse]] = {}
    for use in uses:
        by_pid.setdefault(use.pid, []).append(use)
    return tuple(
        GpuUse(pid, memory(own), busiest(own))
        for pid, own in sorted(by_pid.items())
        if any(use.used & COMPUTE for use in own)
    )


def _parts(card: Path) -> tuple[list[Path], _Files]:
    """The parts that compute, and the names of their files."""
    tiles = _numbered(card / "device", "tile")
    first = [parts[0] for tile in tiles if (parts := _numbered(tile, "gt"))]
    if first:  # a tile's other parts are for video
        return first, XE
    parts = _numbered(card / "gt", "gt")
    if parts:
        return parts[:1], I915
    return [card], OLD_I915


def _numbered(folder: Path, word: str) -> list[Path]:
    entries = reading.entries(folder) or ()
    return [entry for entry in entries if re.fullmatch(rf"{word}[0-9]", entry.name)]


def _monitor(card: Path) -> Path:
    """The whole card's sensors; i915 has others for its parts ("i915_gt0")."""
    folder = card / "device/hwmon"
    monitors = reading.entries(folder) or ()
    named = [each for each in monitors if reading.text(each / "name") in DRIVERS]
    return next(iter(named or monitors), folder / "none")
