"""Most of the machine's cores are off limits to this process.

## What it sees

The ceilings of the CPU were measured on the cores that affinity and the container's quota leave,
and these are fewer than half of the machine's.

## Why it matters

Loaders and CPU training get no more than this. If the job was meant to have the whole machine, a
forgotten taskset, or the limit of a batch job or a container, costs the rest.

## Cure

Ask the batch system or the container for more cores, or start without taskset.

## References

- https://docs.kernel.org/admin-guide/cgroup-v2.html
- https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Cpu, Machine

CHECK = Check(code="HW036", severity=Severity.NOTE, since="0.2.0")
FEW = 0.5


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding, only if the CPU was measured."""
    cpu = machine.cpu
    measured = any(
        ceiling.device == "cpu" and ceiling.value is not None for ceiling in benched.ceilings
    )
    if not measured or cpu.cores is None or cpu.logical_cores is None:
        return
    if cpu.cores >= FEW * cpu.logical_cores:
        return
    yield Diagnosis(
        title=f"measured on {units.count(cpu.cores, 'core')} of the machine's {cpu.logical_cores}",
        evidence=_limits(cpu),
        cure=Cure("If the machine is yours, ask the batch system or the container for more cores."),
    )


def _limits(cpu: Cpu) -> str:
    parts = [f"{cpu.logical_cores} hardware threads in the machine"]
    if cpu.affinity_cores is not None:
        parts.append(f"affinity leaves {cpu.affinity_cores}")
    if cpu.quota_cores is not None:
        parts.append(f"the container's quota is {cpu.quota_cores:g}")
    return ", ".join(parts)
