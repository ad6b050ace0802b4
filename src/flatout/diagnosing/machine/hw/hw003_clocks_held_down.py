"""A GPU's clocks are held down by heat, a power limit, the power supply or a setting.

## What it sees

- sw_thermal_slowdown or hw_thermal_slowdown as the driver's reason for lower clocks.
- A power limit at least 5 % below the limit that the card has by default. On a laptop it is a note:
  on battery, or in a quiet profile, the laptop lowers it by itself.
- hw_power_brake_slowdown, or hw_slowdown without heat, as the driver's reason for lower clocks: the
  power supply's brake.
- applications_clocks_setting as the reason, or one GPU's maximum clock at least 5 % lower than that
  of other GPUs of the same model.

## Why it matters

Speed falls with the clock, and with several GPUs all wait for the slowest. A hot GPU lowers its
clocks by a third or more until the temperature falls.

Under a lowered limit, set against heat or noise or for a weak power supply, the clocks fall until
the power fits. The emergency brake of a server's power supply brings them to a half or less, and
nothing else reports it. Locked clocks are useful for benchmarks. Limits and locks are often
forgotten afterwards.

## Cure

Check for dust, blocked or failed fans, a rack or room that is too warm, and cards without a gap
between them. Until that is fixed, a power limit 10 to 20 % lower costs little speed, and holds a
steadier one than throttling.

Restore the default limit and let the driver choose the clocks, unless that is intended; a limit
does not survive a restart. With a brake the GPU is not the cause: check the power supplies, their
cables (a separate one for each plug) and the server's power cap in its management controller.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.diagnosing import causes, devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_metal
from flatout.installing import system_packages, target
from flatout.nouns import throttles, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW003", severity=Severity.WARNING, since="0.2.0")
TOLERATED = 0.95
"""The share of its peers' maximum clock that is no setting's doing."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all GPUs of each cause."""
    gpus, nvidia = machine.gpus or (), machine.gpus_of("nvidia")
    slowed = [gpu for gpu in gpus if causes.reasons(gpu, throttles.HEAT)]
    if slowed:
        watched = [gpu for gpu in slowed if gpu.vendor == "nvidia"]
        watch = causes.watch_heat(watched) if watched else "rocm-smi --showtemp --showfan"
        yield Diagnosis(
            title=f"{devices.subject(slowed)}: slowed down by heat now",
            evidence=devices.facts(slowed, _slowed_facts),
            cure=Cure(causes.COOL, (watch,)),
        )
    capped = [gpu for gpu in gpus if causes.lowered_limit(gpu)]
    braked = [gpu for gpu in gpus if _braked(gpu)]
    locked = [
        gpu for gpu in nvidia if causes.reasons(gpu, throttles.SETTINGS) or _peers(gpu, nvidia)
    ]
    if capped:
        yield _power_limit(machine, capped)
    if braked:
        yield _power_supply(machine, braked)
    if locked:
        yield _setting(machine, locked)


def _power_limit(machine: Machine, capped: list[Gpu]) -> Diagnosis:
    lowest = units.share(min(map(causes.limit_share, capped)))
    amd = [str(gpu.index) for gpu in capped if gpu.vendor == "amd" and gpu.index is not None]
    lines = [f"rocm-smi -d {' '.join(amd)} --resetpoweroverdrive"] if amd else []
    lines += causes.default_limits(capped)
    own = all(devices.laptop(gpu) for gpu in capped)
    text = "Restore the default, unless the limit is intended (heat, noise, power supply)."
    plug = "Plug the laptop in and choose its profile for performance; the driver cannot set this."
    return Diagnosis(
        title=f"{devices.subject(capped)}: power limit at {lowest} of the default",
        evidence=devices.facts(capped, _limits),
        cure=Cure(plug) if own else Cure(text, devices.settings(machine, lines)),
        severity=Severity.NOTE if own else Severity.WARNING,
    )


def _limits(gpu: Gpu) -> str:
    most = f", at most {gpu.power_limit_max_w:g} W" if gpu.power_limit_max_w is not None else ""
    return f"limit {gpu.power_limit_w:g} W, default {gpu.power_limit_default_w:g} W{most}"


def _braked(gpu: Gpu) -> bool:
    """Whether the driver names a power brake, or reports a slowdown that heat does not explain."""
    reasons = causes.reasons(gpu, throttles.BRAKE)
    return "hw_power_brake_slowdown" in reasons or bool(
        reasons and not causes.reasons(gpu, throttles.HEAT)
    )


def _power_supply(machine: Machine, braked: list[Gpu]) -> Diagnosis:
    look = [causes.look_at_power(braked)]
    if on_metal(machine) and devices.data_center(braked[0]):
        ipmi = "ipmitool sdr type 'Power Supply'"
        look.append(system_packages.sudo(target.of(machine), ipmi))
    return Diagnosis(
        title=f"{devices.subject(braked)}: slowed down by the power supply",
        evidence=devices.facts(braked, _slowdown),
        cure=Cure(causes.SUPPLY, tuple(look)),
    )


def _slowdown(gpu: Gpu) -> str:
    parts = [*causes.reasons(gpu, throttles.BRAKE), *causes.clock(gpu)]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    return ", ".join(parts)


def _setting(machine: Machine, locked: list[Gpu]) -> Diagnosis:
    nvidia = machine.gpus_of("nvidia")
    return Diagnosis(
        title=f"{devices.subject(locked)}: clocks are limited by a setting",
        evidence=devices.facts(locked, lambda gpu: _clocks(gpu, nvidia)),
        cure=Cure(
            "Let the driver choose the clocks again: -rgc undoes locked clocks, -rac application "
            "clocks.",
            devices.settings(machine, causes.free_clocks(locked)),
        ),
    )


def _clocks(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    parts = list(causes.reasons(gpu, throttles.SETTINGS))
    if gpu.clock_sm_mhz is not None:
        parts.append(f"{gpu.clock_sm_mhz} MHz now")
    if gpu.clock_sm_max_mhz is not None:
        parts.append(f"{gpu.clock_sm_max_mhz} MHz at most")
    if peers := _peers(gpu, gpus):
        parts.append(f"its peers {peers} MHz")
    return ", ".join(parts)


def _peers(gpu: Gpu, gpus: Sequence[Gpu]) -> int:
    """The maximum clock of GPUs of the same model that it stays behind, or 0."""
    alike = [peer for peer in gpus if peer.name == gpu.name and gpu.name is not None]
    best = max((peer.clock_sm_max_mhz or 0 for peer in alike), default=0)
    most = gpu.clock_sm_max_mhz
    return best if most is not None and most <= TOLERATED * best else 0


def _slowed_facts(gpu: Gpu) -> str:
    parts = list(causes.reasons(gpu, throttles.HEAT))
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c} C")
    if gpu.temperature_slowdown_c is not None:
        parts.append(f"slowdown at {gpu.temperature_slowdown_c} C")
    return ", ".join((*parts, *causes.clock(gpu)))
