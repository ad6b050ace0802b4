"""Causes and cures that several kinds of checks share, mainly of limited GPU clocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.diagnosing import devices
from flatout.nouns.gpu import Gpu

LOWERED = 0.95
"""A power limit of this share of the default, or less, was lowered by somebody."""

COOL = "Clean and check the fans and the air flow, then watch while it works."
SUPPLY = "Check the power supplies, the card's power cables and the server's own power cap."
UNSET = "Unset them when debugging is done."
"""The cure for variables that were set for debugging."""


def reasons(gpu: Gpu | None, names: Sequence[str]) -> tuple[str, ...]:
    """The reasons among `names` that hold its clocks down."""
    return tuple(reason for reason in names if gpu is not None and reason in (gpu.throttles or ()))


def clock(gpu: Gpu) -> tuple[str, ...]:
    """Like 1200 of 1980 MHz, or empty if unknown."""
    if gpu.clock_sm_mhz is None or gpu.clock_sm_max_mhz is None:
        return ()
    return (f"{gpu.clock_sm_mhz} of {gpu.clock_sm_max_mhz} MHz",)


def limit_share(gpu: Gpu) -> float:
    """Its power limit as a share of the default, or 1 if either is unknown."""
    limit, default = gpu.power_limit_w, gpu.power_limit_default_w
    return limit / default if limit is not None and default else 1.0


def lowered_limit(gpu: Gpu) -> bool:
    """Whether somebody set the power limit below its default."""
    return limit_share(gpu) <= LOWERED


def watch_heat(gpus: Sequence[Gpu]) -> str:
    """The line that shows temperature, fans and clocks repeatedly."""
    query = "--query-gpu=index,temperature.gpu,fan.speed,clocks.sm,power.draw --format=csv -l 2"
    return devices.smi(gpus, query)


def look_at_power(gpus: Sequence[Gpu]) -> str:
    """The line that shows why the clocks are low, and the power."""
    return devices.smi(gpus, "-q -d PERFORMANCE,POWER,CLOCK")


def free_clocks(gpus: Sequence[Gpu]) -> list[str]:
    """The lines that undo locked clocks and application clocks."""
    return [devices.smi(gpus, option) for option in ("-rgc", "-rac")]


def default_limits(gpus: Iterable[Gpu]) -> list[str]:
    """The lines that restore the default power limit of NVIDIA's GPUs, where it is known."""
    alike: dict[float, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.vendor == "nvidia" and gpu.power_limit_default_w is not None:
            alike.setdefault(gpu.power_limit_default_w, []).append(gpu)
    return [devices.smi(same, f"-pl {watts:.0f}") for watts, same in alike.items()]
