"""A disk that training uses is nearly full, or the one with the job's folder is slow.

## What it sees

- The folder of the job, the temporary folder or the folder of caches has less than 1 GiB free (an
  error), or less than 10 GiB and less than 5 % (a warning).
- The current folder is on a drive of Windows seen from WSL (9p, drvfs): a warning. On a network
  file system: a note.

## Why it matters

A checkpoint that does not fit ends the run and may leave a broken file behind; compiled kernels and
downloads fail with "No space left on device", often far from the cause.

Training reads thousands of small files per second in random order. Through 9p and over a network
each one waits for the other side.

## Cure

Find the files that take the space; empty caches, which refill by themselves; move temporary files
elsewhere. From a slow disk copy the data to a local SSD (in WSL: to the home folder of Linux), or
pack it into few large files (tar shards, LMDB, Parquet) that are read in order.

## References

- https://pip.pypa.io/en/stable/topics/caching/
- https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html
- https://learn.microsoft.com/windows/wsl/filesystems
- https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, target
from flatout.installing.target import Target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Disk, Machine

CHECK = Check(code="ENV066", severity=Severity.WARNING, since="0.2.0")
GIB = 2**30
WINDOWS_DRIVES = ("9p", "drvfs", "v9fs")
USES = {"work": "the job's folder", "temporary": "temporary files", "cache": "caches"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per full file system, with all its uses, and one for the job's slow folder."""
    yield from _full(machine)
    yield from _slow(machine)


def _full(machine: Machine) -> Iterator[Diagnosis]:
    full: dict[tuple[int | None, int | None], list[Disk]] = {}
    for disk in machine.disks or ():
        if _severity(disk) is not None:
            full.setdefault((disk.total_bytes, disk.free_bytes), []).append(disk)
    place = target.of(machine)
    for disks in full.values():
        first = disks[0]
        uses = " and ".join(USES.get(disk.use, disk.use) for disk in disks)
        paths = ", ".join(disk.path for disk in disks)
        system = f" ({first.file_system})" if first.file_system else ""
        yield Diagnosis(
            title=f"only {units.size(first.free_bytes)} free on the disk for {uses}",
            evidence=f"{paths}{system}: {units.size(first.free_bytes)} free of "
            f"{units.size(first.total_bytes)}",
            cure=Cure(
                "See what takes the space, then empty the caches.",
                _empty(place, disks),
            ),
            severity=_severity(first),
        )


def _severity(disk: Disk) -> Severity | None:
    free, total = disk.free_bytes, disk.total_bytes
    if free is None or total is None:
        return None
    if free < GIB:
        return Severity.ERROR
    return Severity.WARNING if free < 10 * GIB and free < 0.05 * total else None


def _empty(place: Target, disks: list[Disk]) -> tuple[str, ...]:
    path = shell.quote(place, disks[0].path)
    purge = f"{shell.python(place)} -m pip cache purge"
    if place.system == "Windows":
        sizes = "Sort-Object Length -Descending | Select-Object -First 20 FullName, Length"
        return (f"Get-ChildItem {path} -Recurse -File | {sizes}", purge)
    depth = "-d 1" if place.system == "Darwin" else "--max-depth=1"
    lines = [f"du -xh {depth} {path} 2>/dev/null | sort -h | tail -n 20"]
    if any(disk.use == "cache" for disk in disks):
        lines.append(purge)
    if any(disk.use == "temporary" for disk in disks):
        lines.append('mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"  # if there is space')
    return tuple(lines)


def _slow(machine: Machine) -> Iterator[Diagnosis]:
    place = target.of(machine)
    for disk in machine.disks or ():
        of_windows = disk.file_system in WINDOWS_DRIVES and machine.container.wsl is not None
        if disk.use != "work" or not (of_windows or disk.network):
            continue
        if of_windows:
            cause, severity = "a drive of Windows, reached through WSL", Severity.WARNING
            folder = disk.path.rstrip("/").rpartition("/")[2]
            copy = f'cp -r {shell.quote(place, disk.path)} "$HOME/"'
            lines: tuple[str, ...] = (f'{copy} && cd "$HOME"/{shell.quote(place, folder)}',)
        else:
            cause, severity = "a network file system", Severity.NOTE
            lines = () if place.system == "Windows" else ("df -h",)
        yield Diagnosis(
            title=f"the job's folder is on {cause}",
            evidence=f"{disk.path}: file system {disk.file_system or 'not known'}, {cause}",
            cure=Cure(
                "Copy the training data to a local SSD, or pack it into few large files that are "
                "read in order.",
                lines,
            ),
            severity=severity,
        )
