"""What holds a GPU's clocks down: the driver's reasons (NVML's names), and which mean the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable

IDLE = "gpu_idle"
POWER = ("sw_power_cap",)
HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown")
POWER_BRAKE = ("hw_power_brake_slowdown",)
BRAKE = ("hw_slowdown", *POWER_BRAKE)
"""The hardware itself brakes; hw_slowdown is given beside heat as well."""
SETTINGS = ("applications_clocks_setting",)
UNDER_LOAD = {
    **dict.fromkeys(POWER, "power"),
    **dict.fromkeys(HEAT, "thermal"),
    **dict.fromkeys(POWER_BRAKE, "power brake"),
    "hw_slowdown": "hardware slowdown",
}
"""The reasons that lower clocks under load, in the words of `nouns.profile.DeviceSample`."""


def words(reasons: Iterable[str]) -> tuple[str, ...]:
    """Each word once, for those of the driver's reasons that lower clocks under load."""
    return tuple(dict.fromkeys(UNDER_LOAD[name] for name in reasons if name in UNDER_LOAD))


def any_of(names: Iterable[str], reasons: Collection[str]) -> bool:
    """Whether one of `reasons` (the driver's) is among those given, by its name or its word."""
    return not {*reasons, *words(reasons)}.isdisjoint(names)
