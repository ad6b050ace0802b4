"""The CPU quota is far below the number of cores that programs see.

## What it sees

The cgroup (a container, a Kubernetes pod, a systemd slice) may use at most half of the cores that
are visible to this process.

## Why it matters

Programs count the visible cores and start as many threads and workers. The kernel then stops all of
them for the rest of each 100 ms once the quota is used up: everything stutters, and more threads
make it slower.

## Cure

Give the container more, or tell the programs the real number: OMP_NUM_THREADS, and num_workers of
the DataLoader.

## References

- https://docs.kernel.org/admin-guide/cgroup-v2.html
- https://docs.docker.com/engine/containers/resource_constraints/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV063", severity=Severity.WARNING, since="0.2.0")
VARIABLE = "OMP_NUM_THREADS"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the quota is at most half of the visible cores."""
    quota, visible = machine.cpu.quota_cores, _visible(machine)
    if quota is None or visible is None or quota > visible / 2:
        return
    threads = max(1, int(quota))
    threads_set = (machine.environment or {}).get(VARIABLE)
    if threads_set is not None and threads_set.isdecimal() and int(threads_set) <= quota + 1:
        return
    place = target.of(machine)
    yield Diagnosis(
        title=f"a CPU quota of {quota:g} cores where {visible} are visible",
        evidence=f"quota {quota:g} cores, visible {visible}; {VARIABLE} is "
        f"{threads_set or 'not set'}",
        cure=Cure(
            f"Start at most {threads} threads, also as num_workers of a DataLoader; or raise the "
            "quota.",
            (*system_packages.variable(place, VARIABLE, str(threads)), *_raised(machine, visible)),
        ),
    )


def _raised(machine: Machine, visible: int) -> tuple[str, ...]:
    kind = machine.container.kind
    if kind == "kubernetes":
        return ("# or, in the pod's specification: raise resources.limits.cpu",)
    if kind in ("docker", "podman", "containerd"):
        return (
            f"# or, on the host: {'nerdctl' if kind == 'containerd' else kind} run "
            f"--cpus={visible} ...",
        )
    return ()


def _visible(machine: Machine) -> int | None:
    return machine.cpu.affinity_cores or machine.cpu.logical_cores
