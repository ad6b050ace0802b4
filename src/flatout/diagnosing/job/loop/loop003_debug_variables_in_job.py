"""The job runs under environment variables that are meant for debugging.

## What it sees

Variables of CUDA, ROCm, NCCL, torch and Python, as the job itself has them, that make calls wait,
check every access, keep torch from compiling, or write a log.

## Why it matters

CUDA_LAUNCH_BLOCKING=1 makes the host wait for every kernel: while it launches the next one the
device does nothing. Such lines stay in scripts and job files long after the bug is fixed.

## Cure

Unset them where they are set: the shell's start file, the job file, the container, `os.environ`.

## References

- https://docs.pytorch.org/docs/stable/cuda_environment_variables.html
- https://docs.pytorch.org/docs/stable/torch_environment_variables.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import causes
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time
from flatout.nouns import units
from flatout.nouns.anatomy import CALLING, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP003", severity=Severity.WARNING, since="0.2.0")
BLOCKING = re.compile(r"(CUDA|HIP)_LAUNCH_BLOCKING|AMD_SERIALIZE_KERNEL|TORCH_CUDA_SANITIZER")
UNCACHED = re.compile(r"PYTORCH_NO_CUDA_MEMORY_CACHING")
PYTHON = re.compile(r"PYTHONDEVMODE|PYTHONMALLOC|PYTHONTRACEMALLOC|PYTHONASYNCIODEBUG")
LOGS = re.compile(r"TORCH_LOGS|\w*LOG\w*|NCCL_DEBUG|TORCH_SHOW_CPP_STACKTRACES")
SAVED, SAVED_PYTHON = 0.5, 0.2
"""Cautious shares of the waiting for launches, and of the time in Python."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them; a note if they only write logs."""
    variables = profile.seen.debug_variables if profile.seen is not None else ()
    if not variables:
        return
    names = [variable.partition("=")[0] for variable in variables]
    saving = device_time.of_step(profile, *_saved(profile, names))
    yield Diagnosis(
        title=f"debug variables are set: {', '.join(names)}"[:100],
        evidence="; ".join(variables),
        cure=Cure(causes.UNSET, tuple(f"unset {name}" for name in names)),
        severity=Severity.NOTE if all(LOGS.fullmatch(name) for name in names) else None,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _saved(profile: Profile, names: list[str]) -> tuple[float, str]:
    anatomy, saved, words = profile.anatomy, 0.0, []
    if any(BLOCKING.fullmatch(name) for name in names):
        idle = anatomy.part(Kind.WAIT_HOST, Kind.WAIT_SYNC)
        saved += idle * SAVED
        words.append(
            f"the device waits {units.milliseconds(idle)} for launches that wait for it, of which "
            f"{units.share(SAVED)} is taken to go (a cautious constant)"
        )
    if any(UNCACHED.fullmatch(name) for name in names):
        waited = device_memory.waited_ms(profile)
        saved += waited
        words.append(device_memory.waited_words(waited))
    if any(PYTHON.fullmatch(name) for name in names):
        python = anatomy.part(*CALLING)
        saved += python * SAVED_PYTHON
        words.append(
            f"Python takes {units.milliseconds(python)}, of which {units.share(SAVED_PYTHON)} is "
            "taken to go (a cautious constant)"
        )
    return saved, "; ".join(words)
