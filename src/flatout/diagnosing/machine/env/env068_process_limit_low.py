"""The limit of processes and threads is low.

## What it sees

On Linux, this user may run fewer than 4096 processes and threads (ulimit -u).

## Why it matters

Every thread counts: eight ranks with eight loader workers each, and the thread pools of OpenMP and
the libraries in each of them, are thousands. Then "Resource temporarily unavailable" or
"pthread_create failed" ends the program.

## Cure

Raise the limit for logins in /etc/security/limits.d; in a container: --pids-limit and --ulimit.

## References

- https://man7.org/linux/man-pages/man2/getrlimit.2.html
- https://man7.org/linux/man-pages/man5/limits.conf.5.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV068", severity=Severity.WARNING, since="0.2.0")
ENOUGH = 4096


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the limit is low."""
    limit = machine.limits.processes
    if machine.system.name != "Linux" or limit is None or limit < 0 or limit >= ENOUGH:
        return
    cores = machine.cpu.logical_cores
    yield Diagnosis(
        title=f"at most {limit} processes and threads: too few for loader workers and ranks",
        evidence=f"limit of processes {limit}" + (f"; {cores} hardware threads" if cores else ""),
        cure=Cure(_text(machine), _commands(machine)),
    )


def _text(machine: Machine) -> str:
    if machine.container.kind is not None:
        return "Start the container with a higher limit."
    return "Raise the limit, then log in again."


def _commands(machine: Machine) -> tuple[str, ...]:
    if machine.container.kind is not None:
        return (
            "# On the host, start the container again with:",
            "# docker run --pids-limit=-1 --ulimit nproc=65536:65536 ...",
        )
    file = system_packages.sudo(target.of(machine), "tee /etc/security/limits.d/processes.conf")
    return (f"echo '* - nproc 65536' | {file}",)
