"""The folder for temporary files is not writable.

## What it sees

This user may not write into the temporary folder (TMPDIR, TEMP or /tmp).

## Why it matters

torch.compile and Triton keep compiled kernels there, pip unpacks there, loader workers and ranks
put their sockets there. The messages differ: "No usable temporary directory found", "Permission
denied".

## Cure

Use a folder of one's own as TMPDIR, or give the shared one its usual mode back.

## References

- https://docs.python.org/3/library/tempfile.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Disk, Machine

CHECK = Check(code="ENV070", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the temporary folder."""
    for disk in machine.disks or ():
        if disk.use != "temporary" or disk.writable is not False:
            continue
        variable = (machine.environment or {}).get("TMPDIR")
        yield Diagnosis(
            title=f"{disk.path[-60:]} for temporary files is not writable",
            evidence=f"{disk.path}: not writable by this user"
            + (f", file system {disk.file_system}" if disk.file_system else "")
            + (f"; TMPDIR is {variable}" if variable else ""),
            cure=Cure(
                "Use a folder of your own for temporary files.", _commands(target.of(machine), disk)
            ),
        )


def _commands(place: Target, disk: Disk) -> tuple[str, ...]:
    if place.system == "Windows":
        return (
            'New-Item -ItemType Directory -Force "$HOME\\tmp"',
            '$env:TEMP = "$HOME\\tmp"; $env:TMP = "$HOME\\tmp"',
        )
    own = ('mkdir -p "$HOME/tmp"', 'export TMPDIR="$HOME/tmp"')
    if disk.path != "/tmp":
        return own
    mode = system_packages.sudo(place, f"chmod 1777 {shell.quote(place, disk.path)}")
    return (*own, f"# or, where /tmp lost its usual mode: {mode}")
