"""A GPU computes far less than its data sheet says, or its memory is far slower.

## What it sees

- The best matrix product over all number formats gives less than 55 % of the data sheet's dense
  peak (AMD: 40 %). Each cause that the driver names while it runs is a finding: the power limit
  (sw_power_cap; a note at the card's default limit, which is as it is built), heat
  (sw_thermal_slowdown, hw_thermal_slowdown), fixed clocks (applications_clocks_setting), the power
  supply's brake (hw_slowdown, hw_power_brake_slowdown). If it names none and no other program runs
  there, the shortfall itself is the finding.
- Copy and triad give less than 70 % of the data sheet's bandwidth. If ECC is on and the card has
  GDDR memory, that explains it, and it is a note: there the check bits share the data bus. HBM has
  extra lines for them.

## Why it matters

Healthy GPUs give 70 to 95 %. Every training step loses as much. This was a load of seconds;
training lasts for hours, and with several GPUs all wait for the slowest one. Even at its default
limit a small card (L4: 72 W) reaches at most half of its peak.

Most operators of most models are limited by the memory's bandwidth (elementwise operators,
normalisation, optimizers): they are slower by as much. Healthy GPUs give 80 to 95 %. ECC costs 5 to
15 %, sometimes more.

## Cure

Restore the default power limit and unlock the clocks, unless that is intended. With heat, clean and
check the fans, the air flow and the room. With a power brake, check the power supplies and cables.

If no cause is named, compare with another torch or driver first: a build without kernels for this
GPU falls back to slow ones. In a virtual machine ask whether the GPU is shared. If only one card
stays slow, it is faulty.

Keep ECC if a wrong bit must not go unnoticed: that is its purpose. Otherwise it can be switched
off, which needs a GPU reset. Slow memory without ECC: a memory clock below its maximum means a
power state that does not rise, or a card that protects itself. Look for memory errors; restart the
machine.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
- https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
- https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing import causes, devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.ceilings.hw.shortfalls import Shortfall
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.knowledge import gpus
from flatout.nouns import throttles, units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW024", severity=Severity.WARNING, since="0.2.0")
GDDR_GB_PER_S = 1100
"""Data center and workstation cards below this have GDDR, the others HBM."""
LOOK = "-q -d PERFORMANCE,POWER,CLOCK,TEMPERATURE"


@dataclass(frozen=True)
class Explanation:
    """Why a GPU stays below its peak."""

    title: str
    """Behind the share that it reaches."""
    facts: str
    cure: Cure
    severity: Severity = Severity.WARNING


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each such GPU and cause."""
    yield from _compute(benched, machine)
    yield from _memory(benched, machine)


def _compute(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    for shortfall in shortfalls.compute(benched, machine):
        known = list(_named(machine, shortfall.gpu)) if shortfall.gpu is not None else []
        if not known and not shortfalls.other_programs(shortfall.gpu):
            known = [_unnamed(benched, shortfall)]
        for cause in known:
            yield Diagnosis(
                title=f"{shortfall.label}: {units.share(shortfall.share)} of {cause.title}",
                evidence=f"{shortfall.figures}; {cause.facts}",
                cure=cause.cure,
                severity=cause.severity,
            )


def _named(machine: Machine, gpu: Gpu) -> Iterator[Explanation]:
    """The causes that the driver names."""
    for names, cause in CAUSES.items():
        reasons = causes.reasons(gpu, names)
        heat_as_well = names == throttles.BRAKE and causes.reasons(gpu, throttles.HEAT)
        if reasons and not heat_as_well:  # hw_slowdown is also reported with heat
            yield cause(machine, gpu, reasons)


def _power(machine: Machine, gpu: Gpu, _: tuple[str, ...]) -> Explanation:
    parts = [
        f"limit {gpu.power_limit_w:g} W" if gpu.power_limit_w is not None else "",
        f"default {gpu.power_limit_default_w:g} W" if gpu.power_limit_default_w else "",
        f"{gpu.power_w:.0f} W and" if gpu.power_w is not None else "",
        f"{gpu.clock_sm_mhz} MHz under load" if gpu.clock_sm_mhz is not None else "",
    ]
    facts = ", ".join(part for part in parts if part).replace("and, ", "and ")
    title = "its peak under the power limit"
    if not causes.lowered_limit(gpu):
        own = "This is the card's default limit: it cannot sustain its peak."
        return Explanation(title, facts, Cure(own), Severity.NOTE)
    lines = devices.settings(machine, causes.default_limits([gpu]))
    return Explanation(
        title, facts, Cure("Restore the default limit, unless the lower one is intended.", lines)
    )


def _heat(_: Machine, gpu: Gpu, reasons: tuple[str, ...]) -> Explanation:
    temperature = () if gpu.temperature_c is None else (f"{gpu.temperature_c} C",)
    watch = (causes.watch_heat([gpu]),) if gpu.vendor == "nvidia" else ()
    facts = ", ".join((*reasons, *temperature, *causes.clock(gpu)))
    return Explanation("its peak, slowed by heat", facts, Cure(causes.COOL, watch))


def _locked(machine: Machine, gpu: Gpu, reasons: tuple[str, ...]) -> Explanation:
    text = "The clocks are locked: unlock them, unless this is intended."
    return _held_down(machine, gpu, reasons, text, causes.free_clocks([gpu]))


def _brake(machine: Machine, gpu: Gpu, reasons: tuple[str, ...]) -> Explanation:
    return _held_down(machine, gpu, reasons, causes.SUPPLY, [causes.look_at_power([gpu])])


def _held_down(
    machine: Machine, gpu: Gpu, reasons: tuple[str, ...], text: str, lines: list[str]
) -> Explanation:
    facts = ", ".join((*reasons, *causes.clock(gpu)))
    commands = devices.settings(machine, lines) if gpu.vendor == "nvidia" else ()
    return Explanation("its peak, clocks held down", facts, Cure(text, commands))


CAUSES: dict[tuple[str, ...], Callable[[Machine, Gpu, tuple[str, ...]], Explanation]] = {
    throttles.POWER: _power,
    throttles.HEAT: _heat,
    throttles.SETTINGS: _locked,
    throttles.BRAKE: _brake,
}
"""By the driver's names for them."""


def _unnamed(benched: Benched, shortfall: Shortfall) -> Explanation:
    gpu = shortfall.gpu
    clock = "".join(f"{clock} under load; " for clock in (causes.clock(gpu) if gpu else ()))
    look = (devices.smi([gpu], LOOK),) if gpu is not None and gpu.vendor == "nvidia" else ()
    return Explanation(
        "the peak on its data sheet",
        f"{clock}torch {benched.torch}",
        Cure(
            "Look at the driver's state under load, and measure with another torch build.",
            ("flatout doctor --deep", *look),
        ),
    )


def _memory(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    for shortfall in shortfalls.memory(benched, machine):
        gpu = shortfall.gpu
        if gpu is not None and _gddr_with_ecc(gpu):
            yield Diagnosis(
                title=f"{shortfall.label}: {units.share(shortfall.share)} of its bandwidth, ECC on",
                evidence=f"{shortfall.figures}; ECC is on",
                cure=Cure(
                    "Keep ECC, or switch it off where a wrong bit is acceptable; this needs a GPU "
                    "reset.",
                    devices.settings(machine, [f"# {devices.smi([gpu], '-e 0')}"]),
                ),
                severity=Severity.NOTE,
            )
        elif not shortfalls.other_programs(gpu):
            nvidia = [gpu] if gpu is not None and gpu.vendor == "nvidia" else []
            look = "-q -d CLOCK,ECC,ROW_REMAPPER,PERFORMANCE"
            now, most = (gpu.clock_memory_mhz, gpu.clock_memory_max_mhz) if gpu else (None, None)
            clock = f"; memory at {now} of {most} MHz under load"
            yield Diagnosis(
                title=f"{shortfall.label}: {units.share(shortfall.share)} of its data sheet's "
                "memory bandwidth",
                evidence=shortfall.figures + ("" if now is None or most is None else clock),
                cure=Cure(
                    "Look for memory errors and a memory clock that does not rise; restart, "
                    "measure again.",
                    (devices.smi(nvidia, look),) if nvidia else (),
                ),
            )


def _gddr_with_ecc(gpu: Gpu) -> bool:
    """Whether ECC is on and its bits travel with the data: the bandwidth is too low for HBM."""
    model = gpus.find(gpu.name, gpu.memory_bytes) if gpu.name else None
    bandwidth = model.bandwidth_gb_per_s if model else None
    return gpu.ecc is True and bandwidth is not None and bandwidth < GDDR_GB_PER_S
