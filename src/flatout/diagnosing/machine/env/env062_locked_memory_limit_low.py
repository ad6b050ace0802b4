"""The limit of locked memory keeps InfiniBand from registering buffers.

## What it sees

An InfiniBand or RoCE port is active, and this process may lock less than 1 GiB of memory
(ulimit -l).

## Why it matters

RDMA needs its buffers locked in memory. With a low limit NCCL fails ("ibv_reg_mr failed", "Cannot
allocate memory") or falls back to TCP, at a fraction of the speed.

## Cure

Make the limit unlimited: /etc/security/limits.d for logins, --ulimit memlock=-1 for a container.

## References

- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- https://man7.org/linux/man-pages/man5/limits.conf.5.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV062", severity=Severity.WARNING, since="0.2.0")
ENOUGH = 2**30


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if ports are active and the limit is low."""
    limit = machine.limits.locked_memory_bytes
    active = [port.name for port in machine.network_ports or () if port.state == "active"]
    if not active or limit is None or limit < 0 or limit >= ENOUGH:
        return
    yield Diagnosis(
        title=f"only {units.size(limit)} may be locked: too little for InfiniBand",
        evidence=f"limit of locked memory {units.size(limit)}; active ports: {', '.join(active)}",
        cure=Cure(
            "Make the limit unlimited, then log in again; Slurm and systemd have limits of their "
            "own (LimitMEMLOCK=infinity).",
            _commands(machine),
        ),
    )


def _commands(machine: Machine) -> tuple[str, ...]:
    if machine.container.kind is not None:
        return (
            "# On the host, start the container again with:",
            "# docker run --ulimit memlock=-1 ...",
        )
    file = system_packages.sudo(target.of(machine), "tee /etc/security/limits.d/locked-memory.conf")
    return (rf"printf '* soft memlock unlimited\n* hard memlock unlimited\n' | {file}",)
