"""NVIDIA's GPUs now, at little cost: cheap questions each time, slow ones every ten seconds.

A question takes from 2 us (utilization) to 5 ms (processes) under a lock that all programs on the
machine share, so nothing is asked more often than it changes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing.live.pids import alive
from flatout.probing.nvml import gpu as facts
from flatout.probing.nvml.gpm import UNKNOWN, GpmSampler
from flatout.probing.nvml.questions import Questions

SLOW_EVERY_S = 10.0
XID_CRITICAL = 0x8
PCIE_SENT, PCIE_RECEIVED = 0, 1
MOST_XIDS = 20


class NvidiaSampler:
    """The driver's GPUs. A GPU that has fallen off the bus has no more figures."""

    def __init__(self, ask: Questions) -> None:
        self._ask = ask
        self._handles = ask.handles()
        self._slow: dict[int, GpuSample] = {}
        self._slow_s: float | None = None
        self._events = _events(ask, self._handles)
        self._xids: dict[int, tuple[int, ...]] = {}
        self._gpm = GpmSampler(ask)
        self.gpm_wanted = False
        """Whether anybody needs `sm_active` and `tensor_active`, which are queried only then."""

    def sample(self, now_s: float) -> tuple[GpuSample, ...]:
        """Each GPU now; `now_s` is of a clock that only goes forward."""
        if self._slow_s is None or now_s - self._slow_s >= SLOW_EVERY_S:
            self._slow_s = now_s
            self._slow = {
                index: self._slow_facts(index, handle) for index, handle in self._handles.items()
            }
        for _ in range(MOST_XIDS if self._events is not None else 0):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)  # does not wait
            if event is None:
                break
            address = self._ask.pci("nvmlDeviceGetPciInfo", event.device)[0]
            for index, handle in self._handles.items():
                if address and self._ask.pci("nvmlDeviceGetPciInfo", handle)[0] == address:
                    known = self._xids.get(index, ())
                    self._xids[index] = (*known, int(event.eventData))[-MOST_XIDS:]
                    break
        if not self.gpm_wanted:
            self._gpm.close()
        return tuple(
            self._fast_facts(index, handle, now_s) for index, handle in self._handles.items()
        )

    def close(self) -> None:
        """Release the driver's events and samples."""
        self._gpm.close()
        if self._events is not None:
            self._ask("nvmlEventSetFree", self._events)

    def _fast_facts(self, index: int, handle: Any, now_s: float) -> GpuSample:
        ask = self._ask
        memory = facts.memory(ask, handle)
        gpm = self._gpm.shares(index, handle, now_s) if self.gpm_wanted else UNKNOWN
        return replace(
            self._slow[index],
            utilization=facts.utilization(ask, handle),
            sm_active=gpm.sm_active,
            tensor_active=gpm.tensor_active,
            memory_used_bytes=memory["memory_used_bytes"],
            memory_bytes=memory["memory_bytes"],
            power_w=facts.watts(ask.number("nvmlDeviceGetPowerUsage", handle)),
            temperature_c=ask.number("nvmlDeviceGetTemperature", handle, facts.TEMPERATURE_GPU),
            clock_mhz=ask.number("nvmlDeviceGetClockInfo", handle, facts.CLOCK_SM),
            throttles=facts.throttles(ask, handle),
            xids=self._xids.get(index, ()),
        )

    def _slow_facts(self, index: int, handle: Any) -> GpuSample:
        ask, power = self._ask, facts.power_and_heat(self._ask, handle)
        errors = facts.errors(ask, handle)
        fan = ask.number("nvmlDeviceGetFanSpeed", handle)
        return GpuSample(
            index=index,
            vendor="nvidia",
            name=ask.text("nvmlDeviceGetName", handle),
            uuid=ask.text("nvmlDeviceGetUUID", handle),
            power_limit_w=power["power_limit_w"],
            power_limit_default_w=power["power_limit_default_w"],
            clock_max_mhz=ask.number("nvmlDeviceGetMaxClockInfo", handle, facts.CLOCK_SM),
            fan=None if fan is None else fan / 100,
            pcie_received_bytes_per_s=self._pcie(handle, PCIE_RECEIVED),
            pcie_sent_bytes_per_s=self._pcie(handle, PCIE_SENT),
            ecc_uncorrected=errors["ecc_uncorrected"],
            remap_pending=errors["retirement_pending"],
            processes=self._processes(handle),
        )

    def _pcie(self, handle: Any, direction: int) -> float | None:
        kilobytes = self._ask.number("nvmlDeviceGetPcieThroughput", handle, direction)
        return None if kilobytes is None else 1000.0 * kilobytes

    def _processes(self, handle: Any) -> tuple[GpuUse, ...] | None:
        processes = facts.processes(self._ask, handle)
        if processes is None:
            return None
        since_us = int(1e6 * (time.time() - SLOW_EVERY_S))  # the driver also keeps older answers
        rates = self._ask("nvmlDeviceGetProcessUtilization", handle, since_us) or ()
        shares: dict[int, float] = {}
        for rate in sorted(rates, key=lambda rate: getattr(rate, "timeStamp", 0)):
            shares[rate.pid] = min(1.0, rate.smUtil / 100)  # the newest of each process
        return tuple(
            GpuUse(
                process.pid,
                process.memory_bytes,
                shares.get(process.pid),
                alive(process.pid),
                process.computes,
            )
            for process in processes
        )


def _events(ask: Questions, handles: dict[int, Any]) -> Any:
    """A set that receives the driver's errors, or None if this driver does not report them."""
    if not handles:
        return None
    events = ask("nvmlEventSetCreate")
    if events is None:
        return None
    heard = 0
    for handle in handles.values():
        try:
            ask.library.nvmlDeviceRegisterEvents(handle, XID_CRITICAL, events)
            heard += 1
        except Exception:  # a GPU, a system (WSL) or an old library without such events
            continue
    if heard:
        return events
    ask("nvmlEventSetFree", events)
    return None
