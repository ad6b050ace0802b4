"""There is little main memory, or less than the GPUs have.

## What it sees

Less main memory (or a cgroup limit) than the largest GPU has, or less than 8 GiB at all: a warning.
Less than all GPUs have together: a note. GPUs divided by MIG do not count.

## Why it matters

Checkpoints and datasets pass through main memory, and each loader worker takes its share. Where it
is smaller than the GPU's, torch.load of a large checkpoint is killed by the kernel, and offloading
does not help.

## Cure

More memory or a higher limit. With little memory these work: torch.load(mmap=True), safetensors,
fewer loader workers, memory-mapped datasets.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.load.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV064", severity=Severity.WARNING, since="0.2.0")
GIB = 2**30
LITTLE = 8 * GIB
ROUNDING = 0.93
"""The kernel shows slightly less memory than was sold as 8 GiB."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if main memory or its limit is small."""
    total, limit = machine.memory.total_bytes, machine.memory.limit_bytes
    if total is None:
        return
    usable = total if limit is None else min(total, limit)
    whole = (gpu for gpu in devices.own_memory(machine) if not gpu.mig)  # a slice is far smaller
    on_gpus = [gpu.memory_bytes or 0 for gpu in whole]
    largest, together = max(on_gpus, default=0), sum(on_gpus)
    enough = max(LITTLE, together) * ROUNDING
    if usable >= enough:
        return
    few = usable < max(LITTLE, largest) * ROUNDING
    owners = "the GPUs have" if len(on_gpus) > 1 else "the GPU has"
    against = f": less than {owners}" if usable < together * ROUNDING else ""
    yield Diagnosis(
        title=f"{units.size(usable)} of main memory{against}",
        evidence=f"main memory {units.size(total)}"
        + (f", limited to {units.size(limit)} by the cgroup" if limit is not None else "")
        + (f"; GPU memory {units.size(together)} in {len(on_gpus)}" if on_gpus else ""),
        cure=Cure(
            "Load checkpoints with torch.load(path, mmap=True) or safetensors, and keep "
            "num_workers low. There is little room to offload to.",
            _commands(machine),
        ),
        severity=Severity.WARNING if few else Severity.NOTE,
    )


def _commands(machine: Machine) -> tuple[str, ...]:
    limit, total = machine.memory.limit_bytes, machine.memory.total_bytes
    if limit is None or total is None or limit >= total or machine.container.kind is None:
        return ()
    if machine.container.kind == "kubernetes":
        return ("# In the pod's specification: raise resources.limits.memory",)
    return (f"# On the host: docker run --memory={total * 9 // 10 // GIB}g ...",)
