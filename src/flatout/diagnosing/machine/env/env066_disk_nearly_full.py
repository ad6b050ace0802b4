"""A disk that training writes to is nearly full.

## What it sees

The folder of the job, the temporary folder or the folder of caches has less than 1 GiB free (an
error), or less than 10 GiB and less than 5 % (a warning).

## Why it matters

A checkpoint that does not fit ends the run and may leave a broken file behind; compiled kernels and
downloads fail with "No space left on device", often far from the cause.

## Cure

Find the files that take the space; empty caches, which refill by themselves; move temporary files
elsewhere.

## References

- https://pip.pypa.io/en/stable/topics/caching/
- https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html
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
USES = {"work": "the job's folder", "temporary": "temporary files", "cache": "caches"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per file system, with all its uses."""
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
                _commands(place, disks),
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


def _commands(place: Target, disks: list[Disk]) -> tuple[str, ...]:
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
