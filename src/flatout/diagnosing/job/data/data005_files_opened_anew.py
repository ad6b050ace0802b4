"""The dataset reopens the same file for each sample.

## What it sees

While the job was watched, one line of the script opened fewer distinct files than it makes calls in
a single step, so it opens the same files repeatedly. One file per sample (a picture) does not
count. Forked loader workers are also watched.

## Why it matters

Opening costs a walk through the folders, a round trip on a network file system, and the library's
reading of the file's beginning (an HDF5 index, a zip directory, the header of an array). If all
samples are in one file, open it once.

## Evidence

The calls and their milliseconds a step, the line, and the file.

## Cure

Open the file once for each process, when the first sample is asked for: not in `__init__`, since
an open file must not be shared by forked workers. The gain: the calls' time, at most the step's
wait for the loader.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.h5py.org/en/stable/mpi.html
- https://numpy.org/doc/stable/reference/generated/numpy.memmap.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import CallSeen

CHECK = Check(code="DATA005", severity=Severity.WARNING, since="0.2.0")
OPENING = ("open", "h5py.File", "lmdb.open", "sqlite3.connect", "zipfile.ZipFile")
LEAST = 2.0
"""Calls a step for each file from which files count as reopened."""
MOST = 16
"""The most files; more that are all opened again are a small data set, not a fault."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that opens a file again and again."""
    for call in profile.seen.calls if profile.seen is not None else ():
        if call.name not in OPENING or call.where is None or call.files is None:
            continue
        if call.files <= min(call.calls / LEAST, MOST):
            yield from _line(profile, call, call.files)


def _line(profile: Profile, call: CallSeen, files: int) -> Iterator[Diagnosis]:
    loader, spent = loading.loader(profile), call.s * 1000
    if loader is not None and call.in_worker:
        spent /= max(1, loader.num_workers)  # workers open files in parallel
    saves = savings.within(profile, min(spent, _exposed_ms(profile)))
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{units.count(files, 'file')} opened {call.calls:,.0f} times a step",
        evidence=f"{call.name}(): {call.calls:,.1f} calls and {units.milliseconds(call.s * 1000)} "
        f"a step, {units.count(files, 'distinct file')}"
        + (", in loader workers" if call.in_worker else ""),
        cure=Cure(
            "Open the file once in each process, when the first sample is asked for.",
            savings.lines(
                call.where,
                "file = open(path)",
                "if self.file is None:",
                "    self.file = open(path)  # self.file = None in __init__",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=call.where,
        saves_ms=saves,
        reason=f"the {units.milliseconds(spent)} of a step in these calls, of which the step "
        f"waits {units.milliseconds(saves)}",
    )


def _exposed_ms(profile: Profile) -> float:
    """The most to save: the step if the loop itself opens the files, else the wait for workers."""
    loader = loading.loader(profile)
    in_loop = loader is None or loader.num_workers == 0
    if in_loop and not savings.accelerated(profile):
        return profile.anatomy.step_ms
    return loading.waited_ms(profile)
