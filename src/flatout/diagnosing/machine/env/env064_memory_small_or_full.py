"""There is little main memory, less than the GPUs have, or it is full and programs are swapped out.

## What it sees

- Less main memory (or a cgroup limit) than the largest GPU has, or less than 8 GiB at all: a
  warning. Less than all GPUs have together: a note. GPUs divided by MIG do not count.
- In WSL 2 instead: less than 16 GiB, or less than the largest GPU has.
- At least 0.5 GiB are in swap while less than 15 % of the main memory is free: a warning. A tenth
  of the main memory (and at least 4 GiB) in swap with memory free again: a note. On macOS, which
  swaps routinely, only the first is reported.

## Why it matters

Checkpoints and datasets pass through main memory, and each loader worker takes its share. Where it
is smaller than the GPU's, torch.load of a large checkpoint is killed by the kernel, and offloading
does not help. To WSL 2, which is a virtual machine, Windows gives half of its memory by default.

A page in swap costs a disk access instead of 0.1 microseconds. A loader whose workers are swapped
out can be a thousand times slower, and no message says why.

## Cure

More memory or a higher limit; for WSL 2 a larger number in .wslconfig in the Windows home folder.
With little memory these work: torch.load(mmap=True), safetensors, fewer loader workers,
memory-mapped datasets. With programs in swap: find out which one takes the memory, then empty the
swap.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.load.html
- https://learn.microsoft.com/windows/wsl/wsl-config
- https://docs.kernel.org/admin-guide/sysctl/vm.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_host
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine, Memory

CHECK = Check(code="ENV064", severity=Severity.WARNING, since="0.2.0")
GIB = 2**30
LITTLE = 8 * GIB
LITTLE_IN_WSL = 16 * GIB
ROUNDING = 0.93
"""The kernel shows slightly less memory than was sold as 8 GiB."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if main memory or its limit is small, one if swap is in use and it matters."""
    yield from _size(machine)
    yield from _swap(machine)


def _size(machine: Machine) -> Iterator[Diagnosis]:
    total, limit = machine.memory.total_bytes, machine.memory.limit_bytes
    if total is None:
        return
    whole = (gpu for gpu in devices.own_memory(machine) if not gpu.mig)  # a slice is far smaller
    on_gpus = [gpu.memory_bytes or 0 for gpu in whole]
    if machine.container.wsl == 2 and total < max(LITTLE_IN_WSL, *on_gpus, 0) * ROUNDING:
        yield _in_wsl(total, max(on_gpus, default=0))
        return
    usable = total if limit is None else min(total, limit)
    if usable < max(LITTLE, sum(on_gpus)) * ROUNDING:
        yield _small(machine, usable, on_gpus)


def _small(machine: Machine, usable: int, on_gpus: list[int]) -> Diagnosis:
    total, limit = machine.memory.total_bytes, machine.memory.limit_bytes
    together = sum(on_gpus)
    lines: tuple[str, ...] = ()
    kind = machine.container.kind
    if limit is not None and total is not None and limit < total and kind is not None:
        lines = (f"# On the host: docker run --memory={total * 9 // 10 // GIB}g ...",)
        if kind == "kubernetes":
            lines = ("# In the pod's specification: raise resources.limits.memory",)
    few = usable < max(LITTLE, *on_gpus, 0) * ROUNDING
    owners = "the GPUs have" if len(on_gpus) > 1 else "the GPU has"
    against = f": less than {owners}" if usable < together * ROUNDING else ""
    return Diagnosis(
        title=f"{units.size(usable)} of main memory{against}",
        evidence=f"main memory {units.size(total)}"
        + (f", limited to {units.size(limit)} by the cgroup" if limit is not None else "")
        + (f"; GPU memory {units.size(together)} in {len(on_gpus)}" if on_gpus else ""),
        cure=Cure(
            "Load checkpoints with torch.load(path, mmap=True) or safetensors, and keep "
            "num_workers low. There is little room to offload to.",
            lines,
        ),
        severity=Severity.WARNING if few else Severity.NOTE,
    )


def _in_wsl(total: int, largest: int) -> Diagnosis:
    gibibytes = -(-max(LITTLE_IN_WSL, largest) * 5 // 4 // GIB)
    return Diagnosis(
        title=f"WSL 2 has only {units.size(total)} of memory",
        evidence=f"main memory of WSL {units.size(total)}"
        + (f"; the GPU has {units.size(largest)}" if largest else ""),
        cure=Cure(
            f"If Windows has more than {gibibytes} GiB, give WSL {gibibytes} GiB; choose less "
            "otherwise. The last line ends this WSL session.",
            (
                "# Look first: a .wslconfig may have other settings under [wsl2]",
                'FILE="$(wslpath "$(cmd.exe /c "echo %USERPROFILE%" | tr -d \'\\r\')")/.wslconfig"',
                'cat "$FILE"',
                rf"""printf '[wsl2]\nmemory={gibibytes}GB\n' >> "$FILE" """.strip(),
                "wsl.exe --shutdown",
            ),
        ),
    )


def _swap(machine: Machine) -> Iterator[Diagnosis]:
    severity = _swap_severity(machine.memory, machine.system.name)
    if severity is None:
        return
    memory = machine.memory
    in_all = f" of {units.size(memory.swap_total_bytes)}" if memory.swap_total_bytes else ""
    place = target.of(machine)
    if place.system == "Windows":
        top = "Sort-Object PagedMemorySize -Descending | Select-Object -First 10"
        look: tuple[str, ...] = (f"Get-Process | {top} Id, ProcessName, PagedMemorySize",)
    elif place.system == "Darwin":
        look = ("ps -Ao pid,user,rss,comm -m | head -n 11",)
    else:
        look = ("ps -eo pid,user,rss,comm --sort=-rss | head -n 11",)
        if severity is not Severity.WARNING:
            back = ("swapoff -a", "swapon -a")
            look += on_host(place, tuple(system_packages.sudo(place, line) for line in back))
    yield Diagnosis(
        title=f"{units.size(memory.swap_used_bytes)} are swapped out to disk",
        evidence=f"swap used {units.size(memory.swap_used_bytes)}{in_all}; main memory available "
        f"{units.size(memory.available_bytes)} of {units.size(memory.total_bytes)}",
        cure=Cure(
            "See which programs take the memory and end or shrink them; use fewer loader workers.",
            look,
        ),
        severity=severity,
    )


def _swap_severity(memory: Memory, system: str | None) -> Severity | None:
    used, free, total = memory.swap_used_bytes, memory.available_bytes, memory.total_bytes
    if used is None or free is None or total is None or used < GIB // 2:
        return None
    if free < 0.15 * total:
        return Severity.WARNING
    large = used >= max(4 * GIB, total // 10)
    return Severity.NOTE if large and system != "Darwin" else None
