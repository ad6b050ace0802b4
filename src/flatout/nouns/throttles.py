"""What limits a GPU's clocks: the driver's reasons (NVML's names), and which mean the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable

IDLE = "gpu_idle"
POWER = ("sw_power_cap",)
HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown")
POWER_BRAKE = ("hw_power_brake_slowdown",)
BRAKE = ("hw_slowdown", *POWER_BRAKE)
"""The hardware itself slows down; hw_slowdown is also reported together with heat."""
SETTINGS = ("applications_clocks_setting",)
UNDER_LOAD = {
    **dict.fromkeys(POWER, "power"),
    **dict.fromkeys(HEAT, "thermal"),
    **dict.fromkeys(POWER_BRAKE, "power brake"),
    "hw_slowdown": "hardware slowdown",
}
"""The reasons that lower clocks under load, in the words of `nouns.profile.DeviceSample`."""


def words(reasons: Iterable[str]) -> tuple[str, ...]:
    """The words, each once, for the driver's reasons that lower clocks under load."""
    return tuple(dict.fromkeys(UNDER_LOAD[name] for name in reasons if name in UNDER_LOAD))


def any_of(names: Iterable[str], reasons: Collection[str]) -> bool:
    """Whether one of the driver's `reasons` is among `names`, by its name or its word."""
    return not {*reasons, *words(reasons)}.isdisjoint(names)
