"""A disk that a job writes to, or shared memory, is nearly full.

## What it sees

Less than 5 GB, or less than twice the largest checkpoint, is free where the job runs; or shared
memory (/dev/shm) is more than 90% full.

## Why it matters

A checkpoint that cannot be written ends the run, often hours after it began, and may leave a
damaged file. Full shared memory kills loader workers with a bus error.

## Cure

Remove old checkpoints, or write them elsewhere. In a container, enlarge shared memory:
`docker run --shm-size=8g`.

## References

- https://docs.pytorch.org/docs/stable/data.html#platform-specific-behaviors
- https://docs.docker.com/reference/cli/docker/container/run/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine_sample import DiskSample
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, Rule, View

RULE = Rule(code="DISK001", severity=Severity.WARNING, since="0.2.0")
LEAST_BYTES = 5_000_000_000
SAVES = 2
SHARED = "/dev/shm"
SHARED_USED, SHARED_LOWER = 0.90, 0.85
UPPER = 1.1
"""An alert is over above this many times the least room."""


def check(view: View) -> Iterator[Breach]:
    """One breach for each file system without enough room."""
    job = _windows.runs(view.job)
    if job is None or view.latest is None:
        return
    for disk in view.latest.disks:
        if disk.path == SHARED:
            yield from _shared(disk)
        elif disk.path == job.folder:
            least = max(LEAST_BYTES, SAVES * (job.largest_save_bytes or 0))
            # A small disk that is nearly empty is not filling up.
            if disk.free_bytes < UPPER * least and disk.free_bytes < 0.2 * disk.bytes:
                yield Breach(
                    title=f"only {_windows.gib(disk.free_bytes)} are free where the job runs",
                    evidence=f"{disk.path}: {_windows.gib(disk.bytes)} in all",
                    cure=Cure("Remove old checkpoints, or write them to another disk."),
                    subject=disk.path,
                    fires=disk.free_bytes < least,
                )


def _shared(disk: DiskSample) -> Iterator[Breach]:
    used = 1 - disk.free_bytes / disk.bytes if disk.bytes else 0.0
    if used >= SHARED_LOWER:
        yield Breach(
            title=f"shared memory is full to {used:.0%}",
            evidence=f"{disk.path}: {_windows.gib(disk.free_bytes)} of "
            f"{_windows.gib(disk.bytes)} are free",
            cure=Cure(
                "Remove what dead programs left in it; give a container more.",
                ("ls -lS /dev/shm", "docker run --shm-size=8g ..."),
            ),
            subject=disk.path,
            fires=used >= SHARED_USED,
        )
