"""There are more compute threads than cores.

## What it sees

Training on a CPU with more threads (torch's, and the busy loader workers beside them) than cores
that this process may use: affinity, the cgroup's quota and the other processes of the job counted.

## Why it matters

Each operator's threads wait for each other at its end. A thread without a core holds up all others
until it has had its turn, and waiting threads spin meanwhile.

## Cure

As many threads as cores, less one for each busy worker: `torch.set_num_threads`, OMP_NUM_THREADS,
or the boost cpu-threads. The gain: the operators' time, times the share of threads without a core,
times a quarter (a cautious constant), since it depends on whether OpenMP's threads sleep or spin
while they wait.

## References

- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, WAITS
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST004", severity=Severity.WARNING, since="0.2.0")
BELIEVED = 0.25
"""Cautious share of coreless threads' operator time saved; OpenMP's threads may sleep."""
MORE = 1.25
"""Threads for each core from which it is reported."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    share = loading.cores(profile)
    if savings.accelerated(profile) or profile.job is None or share is None:
        return
    threads, workers = profile.job.threads, _busy_workers(profile)
    if threads + workers <= MORE * share or threads <= 1:
        return
    operators = profile.anatomy.step_ms - profile.anatomy.part(*HOST_PARTS, *WAITS)
    saves = savings.within(profile, BELIEVED * operators * (1 - share / (threads + workers)))
    if not savings.worth(profile, saves):
        return
    right = max(1, share - round(workers))
    busy = loading.cores_busy(profile)
    yield Diagnosis(
        title=f"{threads} compute threads on {units.count(share, 'core')}",
        evidence=f"{threads} threads and {workers:.1f} busy loader workers; "
        f"{units.count(share, 'core')} for this process"
        + (f", {busy:.1f} of them busy" if busy is not None else ""),
        cure=Cure(
            f"Give torch {units.count(right, 'thread')}: torch.set_num_threads({right}) or "
            f"OMP_NUM_THREADS={right}.",
            savings.lines(
                "before training",
                f"torch.set_num_threads({threads})",
                f"torch.set_num_threads({right})",
            ),
        ),
        severity=savings.severity(profile, saves),
        boost=savings.boost(profile, "cpu-threads"),
        saves_ms=saves,
        reason=f"a quarter (a cautious constant) of {units.milliseconds(operators)} in operators, "
        f"times the share of threads without a core, 1 - {share}/{threads + workers:.1f}",
    )


def _busy_workers(profile: Profile) -> float:
    """Cores that loader workers keep busy."""
    loader, work = loading.loader(profile), loading.prepared_ms(profile)
    if loader is None or loader.num_workers < 1 or work is None or profile.anatomy.step_ms <= 0:
        return 0.0
    return min(float(loader.num_workers), work / profile.anatomy.step_ms)
