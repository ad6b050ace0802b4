"""Samples of the GPUs while a program runs, through a fake of the driver's library."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.nouns.profile import DeviceSample
from flatout.probing.sampling import Sampler
from probing.nvml.fake import GIB, Nvml
from running.waiting import until


def busy(pid: int, bus: int = 1, **more: Any) -> dict[str, Any]:
    clocks = itertools.chain([1000, 1400], itertools.repeat(1200))
    return {
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": f"GPU-{bus}",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=80, memory=20),
        "nvmlDeviceGetPowerUsage": 600_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetClockInfo": lambda kind: next(clocks) if kind == 1 else 2000,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetTemperature": 70,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * GIB, used=10 * GIB, free=0),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x20 | 0x1,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid, usedGpuMemory=GIB)],
        **more,
    }


def sampled(library: Any, pids: list[int], environ: dict[str, str]) -> tuple[DeviceSample, ...]:
    with Sampler(library, every_s=0.01) as sampler:
        sampler.on.set()
        until(lambda: len(sampler._snapshots) >= 2)
        sampler.on.clear()
    return sampler.samples(pids, environ)


def test_means_of_the_gpu_that_the_program_uses() -> None:
    (sample,) = sampled(Nvml([busy(7), busy(99, bus=2)]), [7], {})
    assert (sample.index, sample.name) == (0, "NVIDIA H200")
    assert sample.utilisation == pytest.approx(0.8)
    assert (sample.power_w, sample.power_limit_w) == (600, 700)
    assert sample.clock_mhz is not None and 1000 < sample.clock_mhz < 1400
    assert sample.clock_max_mhz == 1980
    assert sample.throttled == ("thermal",)
    assert (sample.memory_used_bytes, sample.memory_bytes) == (10 * GIB, 140 * GIB)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1]), ("1", [1]), ("GPU-1", [0]), ("", []), ("0, 1", [0, 1])],
)
def test_in_a_container_the_visible_ones_that_are_busy(
    visible: str | None, expected: list[int]
) -> None:
    idle = {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0)}
    library = Nvml([busy(7), busy(8, bus=2), busy(9, bus=3, **idle)])
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [sample.index for sample in sampled(library, [1], environ)] == expected
