"""One of several identical GPUs gives clearly less than the others.

## What it sees

One of several GPUs with the same name gives less than 90 % of their median in the same measurement:
matrix products, memory, or copies from the host.

## Why it matters

In data-parallel training each step ends when the slowest GPU does: one slow card makes all slow.

## Cure

Check its temperature, power limit, slot and errors; leave it out until it is repaired.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="HW034", severity=Severity.WARNING, since="0.2.0")
COMPARED = ("matmul-bf16", "matmul-fp16", "copy-device", "copy-host-to-device-pinned")
LEAST = 0.9


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each slow GPU, with the measurement in which it falls behind most."""
    names = {device.device: device.name for device in benched.devices}
    behind: dict[str, tuple[float, float, Ceiling]] = {}
    for rows in _alike(benched, names).values():
        middle = statistics.median([row.value or 0.0 for row in rows])
        for row in rows:
            part = (row.value or 0.0) / middle if middle else 1.0
            if part < LEAST and part < behind.get(row.device, (1.0,))[0]:
                behind[row.device] = part, middle, row
    for device, (part, middle, row) in behind.items():
        gpu = shortfalls.gpu_of(benched, machine, device)
        name = devices.label(gpu) if gpu is not None else f"{names[device]} ({device})"
        yield Diagnosis(
            title=f"{name[:60]}: {units.share(part)} of what its peers give",
            evidence=f"{row.title}: {row.value:,.4g} {row.unit}, the median of all is "
            f"{middle:,.4g}{_state(gpu)}",
            cure=Cure(
                "Check its temperature, power limit, slot and errors; leave it out until it is "
                "repaired.",
                (devices.smi([gpu], "-q"),) if gpu is not None and gpu.vendor == "nvidia" else (),
            ),
        )


def _alike(benched: Benched, names: dict[str, str | None]) -> dict[tuple[str, str], list[Ceiling]]:
    """The same measurement on three or more GPUs of one name; two have no median."""
    groups: dict[tuple[str, str], list[Ceiling]] = defaultdict(list)
    for ceiling in benched.ceilings:
        name = names.get(ceiling.device)
        if ceiling.id in COMPARED and ceiling.value is not None and name:
            groups[name, ceiling.id].append(ceiling)
    return {key: rows for key, rows in groups.items() if len(rows) > 2}


def _state(gpu: Gpu | None) -> str:
    if gpu is None:
        return ""
    parts = [", ".join(gpu.throttles or ())]
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c} C")
    if gpu.clock_sm_mhz is not None:
        parts.append(f"{gpu.clock_sm_mhz} MHz")
    return "".join(f"; {part}" for part in parts if part)
