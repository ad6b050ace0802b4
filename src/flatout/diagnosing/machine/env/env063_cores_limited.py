"""A quota or an affinity leaves a small part of the machine's cores.

## What it sees

- A CPU quota (of a container, a Kubernetes pod, a systemd slice) of at most half of the cores that
  are visible to this process.
- Without a quota, an affinity that leaves it less than half of the hardware threads. With fewer
  than four per GPU it is a warning, else a note.

## Why it matters

Programs count the visible cores and start as many threads and workers. If a quota is used up, the
kernel stops all of them for the rest of each 100 ms: everything stutters, and more threads make it
slower. Loader workers and threads inherit the affinity and share these few cores. Under Slurm that
is the number requested; otherwise it is often left over from a library or a launcher that pins.

## Cure

Give the container or the task more cores, or lift the pinning in the shell. Under a quota tell the
programs the real number: OMP_NUM_THREADS, and num_workers of the DataLoader.

## References

- https://docs.kernel.org/admin-guide/cgroup-v2.html
- https://docs.docker.com/engine/containers/resource_constraints/
- https://man7.org/linux/man-pages/man1/taskset.1.html
- https://slurm.schedmd.com/mc_support.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV063", severity=Severity.WARNING, since="0.2.0")
VARIABLE = "OMP_NUM_THREADS"
PER_GPU = 4
PINNING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding: for the quota if there is one, else for the affinity."""
    cpu = machine.cpu
    own, whole, quota = cpu.affinity_cores, cpu.logical_cores, cpu.quota_cores
    visible = own or whole
    if quota is not None:
        if visible is not None and quota <= visible / 2:
            yield from _quota(machine, quota, visible)
    elif own is not None and whole is not None and own * 2 < whole:
        yield _affinity(machine, own, whole)


def _quota(machine: Machine, quota: float, visible: int) -> Iterator[Diagnosis]:
    """Nothing if the programs are told the number."""
    threads = max(1, int(quota))
    threads_set = (machine.environment or {}).get(VARIABLE)
    if threads_set is not None and threads_set.isdecimal() and int(threads_set) <= quota + 1:
        return
    lines = system_packages.variable(target.of(machine), VARIABLE, str(threads))
    kind = machine.container.kind
    if kind == "kubernetes":
        lines = (*lines, "# or, in the pod's specification: raise resources.limits.cpu")
    elif kind in ("docker", "podman", "containerd"):
        tool = "nerdctl" if kind == "containerd" else kind
        lines = (*lines, f"# or, on the host: {tool} run --cpus={visible} ...")
    yield Diagnosis(
        title=f"a CPU quota of {quota:g} cores where {visible} are visible",
        evidence=f"quota {quota:g} cores, visible {visible}; {VARIABLE} is "
        f"{threads_set or 'not set'}",
        cure=Cure(
            f"Start at most {threads} threads, also as num_workers of a DataLoader; or raise the "
            "quota.",
            lines,
        ),
    )


def _affinity(machine: Machine, own: int, whole: int) -> Diagnosis:
    gpus = len(machine.gpus or ())
    environment = machine.environment or {}
    pinning = {name: value for name, value in environment.items() if name in PINNING}
    settings = ", ".join(f"{name}={value}" for name, value in pinning.items())
    place = target.of(machine)
    lines = [line for name in pinning for line in system_packages.variable(place, name, None)]
    if machine.container.kind is not None:
        lines.append(f"# or, on the host: docker run --cpuset-cpus=0-{whole - 1} ...")
    elif place.system == "Linux":
        lines.append(f"taskset -cp 0-{whole - 1} $$")
    return Diagnosis(
        title=f"pinned to {own} of {whole} hardware threads",
        evidence=f"affinity {own}, machine {whole} hardware threads; "
        + (settings or "no CPU quota")
        + (f"; {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else ""),
        cure=Cure(
            "Under a batch system ask for more cores per task (Slurm: --cpus-per-task). Otherwise "
            "lift the pinning.",
            tuple(lines),
        ),
        severity=Severity.WARNING if own < PER_GPU * max(1, gpus) else Severity.NOTE,
    )
