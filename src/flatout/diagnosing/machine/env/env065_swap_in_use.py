"""Programs have been moved out to swap: main memory is too full.

## What it sees

At least 0.5 GiB are in swap while less than 15 % of the main memory is free: a warning. A tenth of
the main memory (and at least 4 GiB) in swap with memory free again: a note. On macOS, which swaps
routinely, only the first is reported.

## Why it matters

A page in swap costs a disk access instead of 0.1 microseconds. A loader whose workers are swapped
out can be a thousand times slower, and no message says why.

## Cure

Find out which program takes the memory, use fewer loader workers or a smaller cache, then empty the
swap.

## References

- https://docs.kernel.org/admin-guide/sysctl/vm.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_host
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine, Memory

CHECK = Check(code="ENV065", severity=Severity.WARNING, since="0.2.0")
GIB = 2**30


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if swap is in use and it matters."""
    severity = _severity(machine.memory, machine.system.name)
    if severity is None:
        return
    memory = machine.memory
    in_all = f" of {units.size(memory.swap_total_bytes)}" if memory.swap_total_bytes else ""
    yield Diagnosis(
        title=f"{units.size(memory.swap_used_bytes)} are swapped out to disk",
        evidence=f"swap used {units.size(memory.swap_used_bytes)}{in_all}; main memory available "
        f"{units.size(memory.available_bytes)} of {units.size(memory.total_bytes)}",
        cure=Cure(
            "See which programs take the memory and end or shrink them; use fewer loader workers.",
            _commands(machine, severity),
        ),
        severity=severity,
    )


def _severity(memory: Memory, system: str | None) -> Severity | None:
    used, free, total = memory.swap_used_bytes, memory.available_bytes, memory.total_bytes
    if used is None or free is None or total is None or used < GIB // 2:
        return None
    if free < 0.15 * total:
        return Severity.WARNING
    large = used >= max(4 * GIB, total // 10)
    return Severity.NOTE if large and system != "Darwin" else None


def _commands(machine: Machine, severity: Severity) -> tuple[str, ...]:
    place = target.of(machine)
    if place.system == "Windows":
        top = "Sort-Object PagedMemorySize -Descending | Select-Object -First 10"
        return (f"Get-Process | {top} Id, ProcessName, PagedMemorySize",)
    if place.system == "Darwin":
        return ("ps -Ao pid,user,rss,comm -m | head -n 11",)
    look = "ps -eo pid,user,rss,comm --sort=-rss | head -n 11"
    if severity is Severity.WARNING:
        return (look,)
    back = system_packages.sudo(place, "swapoff -a"), system_packages.sudo(place, "swapon -a")
    return (look, *on_host(place, back))
