"""The job's folder is on a slow disk: a hard disk, a network share or a Windows drive in WSL.

## What it sees

The current folder is on a hard disk or on a drive of Windows seen from WSL (9p, drvfs): a warning.
On a network file system: a note.

## Why it matters

Training reads thousands of small files per second in random order. A hard disk does about 100 such
reads per second, an SSD many thousands; through 9p and over a network each one waits for the other
side.

## Cure

Copy the data to a local SSD (in WSL: to the home folder of Linux), or pack it into few large files
(tar shards, LMDB, Parquet) that are read in order.

## References

- https://learn.microsoft.com/windows/wsl/filesystems
- https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Disk, Machine

CHECK = Check(code="ENV067", severity=Severity.WARNING, since="0.2.0")
WINDOWS_DRIVES = ("9p", "drvfs", "v9fs")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the folder of the job."""
    for disk in machine.disks or ():
        reason = _reason(disk, machine)
        if disk.use != "work" or reason is None:
            continue
        cause, severity = reason
        yield Diagnosis(
            title=f"the job's folder is on {cause}",
            evidence=f"{disk.path}: file system {disk.file_system or 'not known'}, {cause}",
            cure=Cure(
                "Copy the training data to a local SSD, or pack it into few large files that are "
                "read in order.",
                _commands(machine, disk),
            ),
            severity=severity,
        )


def _reason(disk: Disk, machine: Machine) -> tuple[str, Severity] | None:
    if disk.file_system in WINDOWS_DRIVES and machine.container.wsl is not None:
        return "a drive of Windows, reached through WSL", Severity.WARNING
    if disk.network:
        return "a network file system", Severity.NOTE
    return ("a hard disk", Severity.WARNING) if disk.rotational else None


def _commands(machine: Machine, disk: Disk) -> tuple[str, ...]:
    place = target.of(machine)
    if place.system == "Windows":
        return ("Get-PhysicalDisk | Select-Object FriendlyName, MediaType, Size",)
    if machine.container.wsl is not None and disk.file_system in WINDOWS_DRIVES:
        folder = disk.path.rstrip("/").rpartition("/")[2]
        copy = f'cp -r {shell.quote(place, disk.path)} "$HOME/"'
        return (f'{copy} && cd "$HOME"/{shell.quote(place, folder)}',)
    if place.system == "Darwin":
        return ("diskutil list",)
    return ("lsblk -d -o NAME,ROTA,SIZE,MODEL,MOUNTPOINTS", "df -hT")
