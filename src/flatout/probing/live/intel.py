"""Intel's GPUs now, from the files of i915 and xe and of the programs that use them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.nouns.gpu import Gpu
from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing import intel, reading
from flatout.probing.live.cards import DriverCards
from flatout.probing.live.drm_clients import DrmClients, DrmUse
from flatout.probing.live.intel_sensors import IntelSensors
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
