"""A GPU is slowed down by heat, by a power brake, or by a lowered power limit.

## What it sees

The driver gives a thermal reason in 80% of the samples of 30 s while the GPU is at least half busy
and its clock is at most 0.93 of its usual clock under load. Or there is a power brake for 5 s, or a
power limit below 0.95 of the default, with the clock below 0.85 of the maximum for 60 s. A clock
held back by the usual power limit (`sw_power_cap`) is normal under load and raises no alert.

## Why it matters

The clock falls, and with it the speed of every kernel. In a job on several GPUs, all of them wait
for the slow one.

## Cure

Check fans, dust, air flow and room temperature. A power brake comes from the power supply. Reset a
lowered limit with `nvidia-smi -pl`.

## References

- https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from flatout.nouns import throttles
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine_sample import GpuSample
from flatout.watching.rules import Breach, Rule, View

RULE = Rule(code="HEAT001", severity=Severity.WARNING, since="0.2.0")
WINDOW_S = 30.0
LEAST_SAMPLES = 10
BUSY = 0.5


def check(view: View) -> Iterator[Breach]:
    """One breach for each GPU that is slowed down."""
    if view.job is not None or view.latest is None:
        return
    for gpu in view.latest.gpus:
        window = [g for sample in view.last(WINDOW_S) for g in sample.gpus if g.index == gpu.index]
        if len(window) >= LEAST_SAMPLES:
            yield from _heat(view, gpu, window)
            if throttles.POWER_BRAKE[0] in (gpu.throttles or ()):
                yield Breach(
                    title=f"GPU {gpu.index} is slowed down by a power brake",
                    evidence=f"the driver reports {throttles.POWER_BRAKE[0]} at {_clock(gpu)}",
                    cure=Cure(
                        "The power supply asks for it: check its cables, its load and its rating."
                    ),
                    subject=f"GPU {gpu.index} power brake",
                    hold_s=5.0,
                )
            yield from _limit(gpu)


def _heat(view: View, gpu: GpuSample, window: Sequence[GpuSample]) -> Iterator[Breach]:
    hot = [g for g in window if set(g.throttles or ()) & set(throttles.HEAT)]
    share = len(hot) / len(window)
    busy = [g.utilization for g in window if g.utilization is not None]
    if share < 0.5 or not busy or median(busy) < BUSY or gpu.clock_mhz is None:
        return
    clocks = [
        g.clock_mhz
        for sample in view.machine
        for g in sample.gpus
        if g.index == gpu.index and g.clock_mhz and (g.utilization or 0) >= BUSY
    ]
    if not clocks:
        return
    usual = sorted(clocks)[int(0.9 * (len(clocks) - 1))]
    now = median(g.clock_mhz for g in window if g.clock_mhz is not None)
    if now > 0.97 * usual:
        return
    heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} °C"
    yield Breach(
        title=f"GPU {gpu.index} is slowed down by heat",
        evidence=f"{share:.0%} of the last 30 s{heat}: {now:.0f} MHz instead of {usual:.0f}",
        cure=Cure("Check fans, dust and air flow; a lower power limit keeps the clock steadier."),
        subject=f"GPU {gpu.index}",
        fires=share >= 0.8 and now <= 0.93 * usual,
    )


def _limit(gpu: GpuSample) -> Iterator[Breach]:
    limit, usual = gpu.power_limit_w, gpu.power_limit_default_w
    if not limit or not usual or not gpu.clock_mhz or not gpu.clock_max_mhz:
        return
    capped = throttles.POWER[0] in (gpu.throttles or ())
    clock = gpu.clock_mhz / gpu.clock_max_mhz
    if limit < 0.97 * usual and clock < 0.9 and capped:
        yield Breach(
            title=f"GPU {gpu.index} is slowed down by a lowered power limit",
            evidence=f"limit {limit:.0f} W, by default {usual:.0f} W; {_clock(gpu)}",
            cure=Cure(
                "Set the limit back, unless it was lowered on purpose.",
                (f"sudo nvidia-smi -i {gpu.index} -pl {usual:.0f}",)
                if gpu.vendor == "nvidia"
                else (),
            ),
            subject=f"GPU {gpu.index} power limit",
            hold_s=60.0,
            fires=limit < 0.95 * usual and clock < 0.85,
        )


def _clock(gpu: GpuSample) -> str:
    most = f" of {gpu.clock_max_mhz:.0f}" if gpu.clock_max_mhz else ""
    return "unknown clock" if gpu.clock_mhz is None else f"{gpu.clock_mhz:.0f}{most} MHz"
