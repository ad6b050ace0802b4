"""Watch the GPUs while kernels run: only under load does the driver say what limits a clock."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Self

from flatout.nouns import throttles
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine
from flatout.probing import nvml

PERIOD_S = 0.5
BUSY = 0.5
"""Share of its power limit, or of its time, from which a sample counts as busy."""


def ask() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs now; empty if the driver cannot be asked."""
    return nvml.facts()[0] or ()


class GpuWatch:
    """Samples in its own thread, within a `with` statement; does nothing without a GPU."""

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
        """The machine as it was before, with its GPUs as they were under load."""
        gpus = self._before.gpus
        if gpus is None or not self._samples:
            return self._before
        return dataclasses.replace(self._before, gpus=tuple(map(self._under_load, gpus)))

    def __enter__(self) -> Self:
        if self._before.gpus_of("nvidia"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2.0)  # a hanging driver blocks only a daemon thread

    def _sample(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._samples.append(tuple(self._ask()))
            except Exception:
                return  # if it cannot be asked, it is unknown; the figures remain valid

    def _under_load(self, gpu: Gpu) -> Gpu:
        """The GPU under load, with the earlier processes: flatout's own came with the kernels."""
        samples = [row for gpus in self._samples for row in gpus if _same(row, gpu)]
        busy = [sample for sample in samples if _busy(sample)]
        if not busy:
            return gpu
        hardest = max(busy, key=lambda sample: sample.power_w or 0.0)
        reasons = {reason for sample in busy for reason in sample.throttles or ()} - {
            throttles.IDLE
        }
        known = any(sample.throttles is not None for sample in busy)
        return dataclasses.replace(
            gpu,
            throttles=tuple(sorted(reasons)) if known else gpu.throttles,
            power_w=hardest.power_w,
            clock_sm_mhz=hardest.clock_sm_mhz,
            clock_memory_mhz=_most([sample.clock_memory_mhz for sample in busy]),
            temperature_c=_most([sample.temperature_c for sample in busy]),
            pcie_generation=_most([sample.pcie_generation for sample in busy]),
            pcie_width=_most([sample.pcie_width for sample in busy]),
            utilization=1.0,
        )


def _same(sample: Gpu, gpu: Gpu) -> bool:
    if sample.uuid is not None and gpu.uuid is not None:
        return sample.uuid == gpu.uuid
    return sample.index is not None and sample.index == gpu.index


def _busy(gpu: Gpu) -> bool:
    if gpu.utilization is not None:
        return gpu.utilization >= BUSY
    return bool(gpu.power_w and gpu.power_limit_w and gpu.power_w >= BUSY * gpu.power_limit_w)


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
