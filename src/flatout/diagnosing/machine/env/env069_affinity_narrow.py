"""The process is pinned to a small part of the machine's cores.

## What it sees

The affinity leaves this process less than half of the hardware threads, and no CPU quota explains
it. With fewer than four per GPU it is a warning, else a note.

## Why it matters

Loader workers and threads inherit the affinity: all of them share these few cores. Under Slurm that
is the number requested; otherwise it is often left over from a library or a launcher that pins.

## Cure

Ask the batch system for more cores per task, or lift the pinning in the shell.

## References

- https://man7.org/linux/man-pages/man1/taskset.1.html
- https://slurm.schedmd.com/mc_support.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV069", severity=Severity.WARNING, since="0.2.0")
PER_GPU = 4
PINNING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if affinity alone narrows the cores."""
    cpu = machine.cpu
    own, whole = cpu.affinity_cores, cpu.logical_cores
    if own is None or whole is None or cpu.quota_cores is not None or own * 2 >= whole:
        return
    gpus = len(machine.gpus or ())
    environment = machine.environment or {}
    pinning = {name: value for name, value in environment.items() if name in PINNING}
    settings = ", ".join(f"{name}={value}" for name, value in pinning.items())
    yield Diagnosis(
        title=f"pinned to {own} of {whole} hardware threads",
        evidence=f"affinity {own}, machine {whole} hardware threads; "
        + (settings or "no CPU quota")
        + (f"; {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""),
        cure=Cure(
            "Under a batch system ask for more cores per task (Slurm: --cpus-per-task). Otherwise "
            "lift the pinning.",
            _commands(machine, whole, pinning),
        ),
        severity=Severity.WARNING if own < PER_GPU * max(1, gpus) else Severity.NOTE,
    )


def _commands(machine: Machine, whole: int, pinning: Iterable[str]) -> tuple[str, ...]:
    place = target.of(machine)
    unset = [line for name in pinning for line in system_packages.variable(place, name, None)]
    if machine.container.kind is not None:
        unset.append(f"# or, on the host: docker run --cpuset-cpus=0-{whole - 1} ...")
    elif place.system == "Linux":
        unset.append(f"taskset -cp 0-{whole - 1} $$")
    return tuple(unset)
