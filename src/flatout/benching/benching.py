"""One whole `flatout bench`, with the machine under load and its ceilings.

The GPUs are watched while kernels run: only then does the driver say what limits a clock.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Self

import psutil

from flatout.benching import ceilings
from flatout.benching.ceiling_run import CeilingOrders, Listener
from flatout.nouns import throttles
from flatout.nouns.ceiling import Benched
from flatout.nouns.errors import UserError
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine
from flatout.probing import machine, nvml

PERIOD_S = 0.5
BUSY = 0.5
"""Share of its power limit, or of its time, from which a sample counts as busy."""
BUSY_S = 0.4
"""Seconds for which the cores are watched before flatout runs anything."""


def bench(
    python: str,
    orders: CeilingOrders,
    listener: Listener | None = None,
    expected: str | None = None,
) -> tuple[Benched, Machine]:
    """Measure now; the Machine is as it was under load. Raises UserError."""
    began = time.monotonic()
    busy = cores_busy()
    with GpuWatch(machine.look(python)) as watch:
        measured = ceilings.run(python, orders, listener)
    if not measured.interrupted:
        devices = {ceiling.device for ceiling in measured.ceilings}
        for device in orders.devices:
            if device not in devices:
                raise UserError(f"there is nothing to measure on {device!r}", "flatout doctor", 2)
        ids = {ceiling.id for ceiling in measured.ceilings}
        for name in orders.wanted:
            if name not in ids:
                raise UserError(
                    f"there is no ceiling {name!r} on this machine",
                    "list them with: flatout bench --quick --json",
                    2,
                )
    benched = Benched(
        machine=measured.machine,
        torch=measured.torch,
        ceilings=measured.ceilings,
        findings=(),
        expected=expected,
        quick=orders.quick,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=time.monotonic() - began,
        devices=measured.devices,
        interrupted=measured.interrupted,
        busy=busy,
    )
    return benched, watch.machine


def cores_busy(interval_s: float = BUSY_S) -> float | None:
    """Share of the machine's cores that are in use now, or None if unknown."""
    try:
        return float(psutil.cpu_percent(interval_s)) / 100
    except (psutil.Error, OSError, RuntimeError):
        return None


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
