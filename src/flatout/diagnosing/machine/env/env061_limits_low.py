"""A limit of this process is low: open files, locked memory, or processes and threads.

## What it sees

- Open files (ulimit -n): a soft limit below 4096. Below 1024 it is a warning (on macOS, where 256
  is usual, a note), else a note.
- Locked memory (ulimit -l): less than 1 GiB while an InfiniBand or RoCE port is active.
- Processes and threads (ulimit -u): fewer than 4096, on Linux.

## Why it matters

Every tensor that a DataLoader worker hands over holds a file descriptor, and so does every socket
between ranks. A program at its limit ends with "Too many open files", often only after hours.

RDMA needs its buffers locked in memory. With a low limit NCCL fails ("ibv_reg_mr failed", "Cannot
allocate memory") or falls back to TCP, at a fraction of the speed.

Every thread counts as a process: eight ranks with eight loader workers each, and the thread pools
of OpenMP and the libraries in each of them, are thousands. Then "Resource temporarily unavailable"
or "pthread_create failed" ends the program.

## Cure

Raise the limit for logins in /etc/security/limits.d; that of open files also in the shell that
starts the program. In a container: the options --ulimit and --pids-limit.

## References

- https://docs.pytorch.org/docs/stable/multiprocessing.html
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- https://man7.org/linux/man-pages/man2/getrlimit.2.html
- https://man7.org/linux/man-pages/man5/limits.conf.5.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV061", severity=Severity.WARNING, since="0.2.0")
ENOUGH_FILES = 4096
FEW_FILES = 1024
WANTED_FILES = 65536
FILES_ON_MACOS = 10240
"""Files that the macOS kernel lets every process open."""
ENOUGH_LOCKED = 2**30
ENOUGH_PROCESSES = 4096


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each low limit."""
    limits = machine.limits
    files, locked, processes = limits.open_files, limits.locked_memory_bytes, limits.processes
    ports = [port.name for port in machine.network_ports or () if port.state == "active"]
    # a negative limit is none
    if files is not None and 0 <= files < ENOUGH_FILES:
        yield _open_files(machine, files)
    if ports and locked is not None and 0 <= locked < ENOUGH_LOCKED:
        yield _locked_memory(machine, locked, ports)
    linux = machine.system.name == "Linux"
    if linux and processes is not None and 0 <= processes < ENOUGH_PROCESSES:
        yield _processes(machine, processes)


def _open_files(machine: Machine, soft: int) -> Diagnosis:
    hard = machine.limits.open_files_hard
    mac = machine.system.name == "Darwin"
    limit = FILES_ON_MACOS if mac else WANTED_FILES
    within_hard = limit if hard is None or hard < 0 else min(limit, hard)
    hard_limit = "" if hard is None else f", hard limit {'none' if hard < 0 else hard}"
    now = f"ulimit -n {max(within_hard, soft)}"
    if machine.container.kind is not None:
        permanent = f"# or: docker run --ulimit nofile={WANTED_FILES}:{WANTED_FILES} ..."
    elif mac:
        permanent = f"echo '{now}' >> ~/.zshrc"
    else:
        kind = "soft" if hard is not None and (hard < 0 or hard >= WANTED_FILES) else "-"  # both
        permanent = _for_logins(machine, f"echo '* {kind} nofile {WANTED_FILES}'", "open-files")
    return Diagnosis(
        title=f"at most {soft} open files: too few for many loader workers",
        evidence=f"soft limit of open files {soft}{hard_limit}",
        cure=Cure(
            "Raise the limit in the shell that starts the program, and where later shells get it.",
            (now, permanent),
        ),
        # torch on macOS hands tensors over by name, not by descriptor; 256 is its usual limit
        severity=Severity.WARNING if soft < FEW_FILES and not mac else Severity.NOTE,
    )


def _locked_memory(machine: Machine, limit: int, ports: list[str]) -> Diagnosis:
    lines = r"printf '* soft memlock unlimited\n* hard memlock unlimited\n'"
    on_host = _on_host(machine, "--ulimit memlock=-1")
    return Diagnosis(
        title=f"only {units.size(limit)} may be locked: too little for InfiniBand",
        evidence=f"limit of locked memory {units.size(limit)}; active ports: {', '.join(ports)}",
        cure=Cure(
            "Make the limit unlimited, then log in again; Slurm and systemd have limits of their "
            "own (LimitMEMLOCK=infinity).",
            on_host or (_for_logins(machine, lines, "locked-memory"),),
        ),
    )


def _processes(machine: Machine, limit: int) -> Diagnosis:
    cores = machine.cpu.logical_cores
    on_host = _on_host(machine, "--pids-limit=-1 --ulimit nproc=65536:65536")
    return Diagnosis(
        title=f"at most {limit} processes and threads: too few for loader workers and ranks",
        evidence=f"limit of processes {limit}" + (f"; {cores} hardware threads" if cores else ""),
        cure=Cure(
            "Start the container with a higher limit."
            if on_host
            else "Raise the limit, then log in again.",
            on_host or (_for_logins(machine, "echo '* - nproc 65536'", "processes"),),
        ),
    )


def _on_host(machine: Machine, options: str) -> tuple[str, ...]:
    """In a container: how to start it with these options; otherwise empty."""
    if machine.container.kind is None:
        return ()
    return ("# On the host, start the container again with:", f"# docker run {options} ...")


def _for_logins(machine: Machine, lines: str, name: str) -> str:
    file = system_packages.sudo(target.of(machine), f"tee /etc/security/limits.d/{name}.conf")
    return f"{lines} | {file}"
