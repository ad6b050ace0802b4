"""The limit of open files is low for loader workers and many ranks.

## What it sees

The soft limit of open files (ulimit -n) is below 4096. Below 1024 it is a warning (on macOS,
where 256 is usual, a note), else a note.

## Why it matters

Every tensor that a DataLoader worker hands over holds a file descriptor, and so does every socket
between ranks. A program at its limit ends with "Too many open files", often only after hours.

## Cure

Raise the soft limit in the shell that starts the program, and for later logins in
/etc/security/limits.d. In a container: the --ulimit option.

## References

- https://docs.pytorch.org/docs/stable/multiprocessing.html
- https://man7.org/linux/man-pages/man5/limits.conf.5.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV061", severity=Severity.WARNING, since="0.2.0")
ENOUGH = 4096
FEW = 1024
WANTED = 65536
ON_MACOS = 10240
"""Files that the macOS kernel lets every process open."""


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the soft limit is low."""
    limits = machine.limits
    soft, hard = limits.open_files, limits.open_files_hard
    if soft is None or soft < 0 or soft >= ENOUGH:
        return
    mac = machine.system.name == "Darwin"
    limit = ON_MACOS if mac else WANTED
    within_hard = limit if hard is None or hard < 0 else min(limit, hard)
    hard_limit = "" if hard is None else f", hard limit {'none' if hard < 0 else hard}"
    yield Diagnosis(
        title=f"at most {soft} open files: too few for many loader workers",
        evidence=f"soft limit of open files {soft}{hard_limit}",
        cure=Cure(
            "Raise the limit in the shell that starts the program, and where later shells get it.",
            _commands(machine, max(within_hard, soft)),
        ),
        # torch on macOS hands tensors over by name, not by descriptor; 256 is its usual limit
        severity=Severity.WARNING if soft < FEW and not mac else Severity.NOTE,
    )


def _commands(machine: Machine, number: int) -> tuple[str, ...]:
    if machine.container.kind is not None:
        return (f"ulimit -n {number}", f"# or: docker run --ulimit nofile={WANTED}:{WANTED} ...")
    if machine.system.name == "Darwin":
        return (f"ulimit -n {number}", f"echo 'ulimit -n {number}' >> ~/.zshrc")
    hard = machine.limits.open_files_hard
    kind = "soft" if hard is not None and (hard < 0 or hard >= WANTED) else "-"  # both
    line = f"'* {kind} nofile {WANTED}'"
    file = system_packages.sudo(target.of(machine), "tee /etc/security/limits.d/open-files.conf")
    return (f"ulimit -n {number}", f"echo {line} | {file}")
