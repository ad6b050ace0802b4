"""One machine, sampled repeatedly; rates come from growing counters."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from flatout.nouns.gpu import Vendor
from flatout.nouns.machine_sample import GpuSample, MachineSample
from flatout.probing import nvml
from flatout.probing.live import linux_host, other_host
from flatout.probing.live.amd import AmdSampler
from flatout.probing.live.apple import AppleSampler
from flatout.probing.live.disks import Disks
from flatout.probing.nvml.live import NvidiaSampler
from flatout_agent import limits

LEAST_S = 0.05
"""Least seconds between samples for a meaningful rate."""
AskGpus = Callable[[float, int], tuple[GpuSample, ...]]
"""Takes the time in seconds and the index of the vendor's first GPU."""


class MachineSampler:
    """Use it in a `with` statement, during which the driver's library is open.

    root: of /proc and /sys, for tests. library: pynvml, or a fake of it.
    """

    def __init__(self, root: Path | None = None, library: Any = None) -> None:
        self._root, self._library = root or Path("/"), library
        self._linux = root is not None or sys.platform.startswith("linux")
        self._stack = ExitStack()
        self._vendors: dict[Vendor, AskGpus] = {}
        self._most: dict[Vendor, int] = {}
        """The most GPUs that each vendor has had, so that the next one's indices stay."""
        self.gpm_wanted = False
        """Whether anybody needs `sm_active` and `tensor_active`, which cost time."""
        self._disks = Disks()
        self._before: tuple[float, dict[str, float]] | None = None
        self._hostname = socket.gethostname()
        self._cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 0

    def __enter__(self) -> Self:
        self._begin("nvidia", self._nvidia)
        if self._linux:
            self._begin("amd", lambda: AmdSampler(self._root).samples)
        elif sys.platform == "darwin":
            self._begin("apple", lambda: AppleSampler().samples)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sample(self, folders: Sequence[str] = ()) -> MachineSample:
        """The machine now. folders: those whose file systems' free space to report."""
        now_s, time_s = time.monotonic(), time.time()
        counters = linux_host.counters(self._root) if self._linux else other_host.counters()
        levels = linux_host.levels(self._root) if self._linux else other_host.levels()
        rates = self._rates(now_s, counters)
        gpus: list[GpuSample] = []
        first_index = 0
        for vendor, ask in self._vendors.items():
            try:
                found = ask(now_s, first_index)
            except Exception:  # a bug or a broken driver: the others are still shown
                found = ()
            gpus += found
            self._most[vendor] = max(self._most.get(vendor, 0), len(found))
            first_index += self._most[vendor]
        quota = limits.cpu_quota(self._root) if self._linux else None
        cores = self._cores or float(os.cpu_count() or 1)
        return MachineSample(
            time_s=time_s,
            hostname=self._hostname,
            gpus=tuple(gpus),
            cores=cores if quota is None else min(cores, quota),
            disks=self._disks.sample(folders),
            **levels,
            **rates,
        )

    def _begin(self, vendor: Vendor, begin: Callable[[], AskGpus | None]) -> None:
        """Start a vendor's sampler; its failure does not affect the other vendors."""
        try:
            ask = begin()
        except Exception:
            return
        if ask is not None:
            self._vendors[vendor] = ask

    def _nvidia(self) -> AskGpus | None:
        ask = self._stack.enter_context(nvml.session(self._library))
        if ask is None:
            return None
        sampler = NvidiaSampler(ask)
        self._stack.callback(sampler.close)

        def samples(now_s: float, first_index: int) -> tuple[GpuSample, ...]:
            sampler.gpm_wanted = self.gpm_wanted
            return sampler.sample(now_s)

        return samples

    def _rates(self, now_s: float, counters: dict[str, float]) -> dict[str, Any]:
        before, self._before = self._before, (now_s, counters)
        if before is None or now_s - before[0] < LEAST_S:
            return {}
        seconds = now_s - before[0]

        def grown(name: str) -> float | None:
            if name not in counters or name not in before[1]:
                return None
            return max(0.0, counters[name] - before[1][name])

        def rate(name: str) -> float | None:
            growth = grown(name)
            return None if growth is None else growth / seconds

        every, steal = grown("cpu_all_s"), grown("cpu_steal_s")
        throttled, periods = grown("periods_throttled"), grown("periods")
        return {
            "cpu_cores": rate("cpu_busy_s"),
            "cpu_steal": steal / every if steal is not None and every else None,
            "cpu_throttled": throttled / periods if throttled is not None and periods else None,
            "swap_in_bytes_per_s": rate("swap_in_bytes"),
            "disk_read_bytes_per_s": rate("disk_read_bytes"),
            "disk_written_bytes_per_s": rate("disk_written_bytes"),
            "network_received_bytes_per_s": rate("network_received_bytes"),
            "network_sent_bytes_per_s": rate("network_sent_bytes"),
        }
