"""/dev/shm is too small for the batches that DataLoader workers pass on.

## What it sees

/dev/shm has less than 1 GiB on Linux (and less than a quarter of the main memory). Docker gives a
container 64 MB by default.

## Why it matters

Each worker process of a DataLoader hands its batches over in shared memory. When it is full, the
worker is killed: "DataLoader worker is killed by signal: Bus error", or "No space left on device".
NCCL between GPUs of one machine uses it too.

## Cure

Start the container with a larger one (Docker: --shm-size or --ipc=host; Kubernetes: an emptyDir of
medium Memory), or mount /dev/shm again with another size. Until then num_workers=0 works.

## References

- https://docs.docker.com/reference/cli/docker/container/run/
- https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine, Memory

CHECK = Check(code="ENV060", severity=Severity.WARNING, since="0.2.0")
GIB = 2**30
ENOUGH = GIB


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if /dev/shm is small."""
    memory = machine.memory
    if machine.system.name != "Linux" or memory.shm_bytes is None:
        return
    if memory.shm_bytes >= min(ENOUGH, (_available(memory) or 4 * ENOUGH) // 4):
        return
    gibibytes = max(1, min(16, (_available(memory) or 32 * GIB) // 2 // GIB))
    kind = machine.container.kind
    free = (
        f", {units.size(memory.shm_free_bytes)} free" if memory.shm_free_bytes is not None else ""
    )
    total = f"; main memory {units.size(_available(memory))}" if _available(memory) else ""
    yield Diagnosis(
        title=f"/dev/shm has only {units.size(memory.shm_bytes)}: DataLoader workers may be killed",
        evidence=f"/dev/shm: {units.size(memory.shm_bytes)}{free}{total}"
        + (f"; in a container ({kind})" if kind else ""),
        cure=Cure(
            f"Give /dev/shm {gibibytes} GiB. Until then a DataLoader with num_workers=0 works.",
            _commands(machine, gibibytes),
        ),
    )


def _available(memory: Memory) -> int | None:
    sizes = [size for size in (memory.total_bytes, memory.limit_bytes) if size is not None]
    return min(sizes, default=None)


def _commands(machine: Machine, gibibytes: int) -> tuple[str, ...]:
    kind = machine.container.kind
    if kind == "kubernetes":
        return (
            "# In the pod's specification:",
            "#   volumes:",
            f"#   - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {gibibytes}Gi}}}}",
            "#   and in the container:",
            "#   volumeMounts:",
            "#   - {name: shm, mountPath: /dev/shm}",
        )
    if kind is not None:
        tool = "podman" if kind == "podman" else "docker"
        return (
            "# On the host, start the container again with:",
            f"# {tool} run --shm-size={gibibytes}g ...",
            "# compose file:",
            f'#   shm_size: "{gibibytes}gb"',
        )
    remount = f"mount -o remount,size={gibibytes}G /dev/shm"
    return (system_packages.sudo(target.of(machine), remount), "df -h /dev/shm")
