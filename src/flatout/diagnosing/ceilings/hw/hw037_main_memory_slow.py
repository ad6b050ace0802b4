"""The main memory gives no more than one channel.

## What it sees

With six cores or more, on bare metal, all cores together read and write less than 20 GB/s: what one
channel of ordinary memory carries (DDR4-3200: 25.6 GB/s, DDR5-4800: 38.4 GB/s, less overhead).

## Why it matters

Desktops have two channels, servers four to twelve. With one module, or modules in the wrong slots,
loaders, optimizers on the CPU and copies of pageable memory have half or less.

## Cure

See which slots hold modules; the board's manual says which two (four, eight) to fill first.

## References

- https://www.cs.virginia.edu/stream/ref.html
- https://www.jedec.org/standards-documents/docs/jesd79-5c01
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW037", severity=Severity.NOTE, since="0.2.0")
ONE_CHANNEL_GB_PER_S = 20
FEWEST_CORES = 6
"""Fewer cores cannot fill two channels."""


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding; in a container or virtual machine others may also use the memory."""
    bandwidth = shortfalls.value(benched, "memory-cpu")
    inside = machine.container.kind or machine.container.virtual_machine or machine.container.wsl
    if bandwidth is None or bandwidth >= ONE_CHANNEL_GB_PER_S or inside:
        return
    cores = machine.cpu.cores
    if cores is None or cores < FEWEST_CORES or cores != machine.cpu.logical_cores:
        return
    yield Diagnosis(
        title=f"main memory: {bandwidth:.3g} GB/s with {cores} cores",
        evidence=f"{bandwidth:.3g} GB/s by copy and triad; one channel of DDR4-3200 carries 25.6 "
        "GB/s",
        cure=Cure(
            "See which slots hold modules; the board's manual says which to fill for all channels.",
            _lines(machine),
        ),
    )


def _lines(machine: Machine) -> tuple[str, ...]:
    if machine.system.name != "Linux":
        return ()
    look = system_packages.sudo(target.of(machine), "dmidecode -t memory")
    return (f"{look} | grep -E 'Size|Locator|Speed'",)
