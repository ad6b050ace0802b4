"""Watch the GPUs while kernels run: what holds a clock down is told only under load."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine
from flatout.probing import nvml

PERIOD_S = 0.5
IDLE = "gpu_idle"
BUSY = 0.5
"""Of its limit in power, or of its time: from there on a sample tells of work."""


def ask() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs now; empty where the driver cannot be asked."""
    return nvml.facts()[0] or ()


class Watch:
    """Samples in a thread of its own, in a `with` statement; nothing where there is no GPU."""

    def __init__(
        self,
        machine: Machine,
        ask: Callable[[], Sequence[Gpu]] = ask,
        period_s: float = PERIOD_S,
    ) -> None:
        self._before, self._ask, self._period_s = machine, ask, period_s
        self._samples: list[tuple[Gpu, ...]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="flatout-watch")

    @property
    def machine(self) -> Machine:
        """The machine as it was before, its GPUs as they were under load."""
        gpus = self._before.gpus
        if gpus is None or not self._samples:
            return self._before
        return dataclasses.replace(self._before, gpus=tuple(map(self._under_load, gpus)))

    def __enter__(self) -> Self:
        if self._before.gpus_of("nvidia"):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2.0)  # a driver that hangs keeps a daemon's thread alone

    def _sample(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._samples.append(tuple(self._ask()))
            except Exception:
                return  # what cannot be asked is not known; the figures stand without it

    def _under_load(self, gpu: Gpu) -> Gpu:
        """Other programs' processes stay as they were: ours came with the kernels."""
        seen = [one for sample in self._samples for one in sample if _same(one, gpu)]
        busy = [one for one in seen if _busy(one)]
        if not busy:
            return gpu
        hardest = max(busy, key=lambda one: one.power_w or 0.0)
        throttles = {reason for one in busy for reason in one.throttles or ()} - {IDLE}
        told = any(one.throttles is not None for one in busy)
        return dataclasses.replace(
            gpu,
            throttles=tuple(sorted(throttles)) if told else gpu.throttles,
            power_w=hardest.power_w,
            clock_sm_mhz=hardest.clock_sm_mhz,
            clock_memory_mhz=_most([one.clock_memory_mhz for one in busy]),
            temperature_c=_most([one.temperature_c for one in busy]),
            pcie_generation=_most([one.pcie_generation for one in busy]),
            pcie_width=_most([one.pcie_width for one in busy]),
            utilization=1.0,
        )


def _same(one: Gpu, other: Gpu) -> bool:
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.index is not None and one.index == other.index


def _busy(gpu: Gpu) -> bool:
    if gpu.utilization is not None:
        return gpu.utilization >= BUSY
    return bool(gpu.power_w and gpu.power_limit_w and gpu.power_w >= BUSY * gpu.power_limit_w)


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
