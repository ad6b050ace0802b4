"""Operators use only few of the cores.

## What it sees

Training on a CPU with fewer threads than cores for this process, all of them busy, and matrix
products that are large enough to be split. One of two hyper-threads counts, or half of the cores
if that is unknown.

## Why it matters

OMP_NUM_THREADS=1 (torchrun sets it by default) or `torch.set_num_threads` leave the other cores
idle. Large matrix products run nearly in proportion to the cores.

## Cure

As many threads as cores (one of two hyper-threads counts), less one for each busy worker. The gain:
seven tenths of that of perfect sharing for matrix products, half of that for the other operators,
which memory limits.

## References

- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
- https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST005", severity=Severity.WARNING, since="0.2.0", hides=("HOST008",))
LARGE_MS = 0.1
"""Mean length of a matrix product that is worth dividing among threads."""
REACHED = 0.7
BOUND_BY_MEMORY = 0.35
OTHERS = (Kind.NORMALISATION, Kind.ELEMENTWISE, Kind.REDUCTION, Kind.CONVERSION, Kind.OPTIMIZER)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    anatomy, share = profile.anatomy, loading.cores(profile)
    if savings.accelerated(profile) or profile.job is None or share is None:
        return
    threads, target = profile.job.threads, _target(profile, share)
    products = [part for part in anatomy.parts if part.kind in (Kind.MATMUL, Kind.ATTENTION)]
    launches = sum(part.launches for part in products)
    shared = sum(part.ms for part in products)
    if threads < 1 or threads >= target or not launches or shared / launches < LARGE_MS:
        return
    busy = loading.cores_busy(profile)
    if busy is None or busy > 1.5 * threads:
        return
    spare = 1 - threads / target
    saves = savings.within(
        profile, spare * (REACHED * shared + BOUND_BY_MEMORY * anatomy.part(*OTHERS))
    )
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{units.count(threads, 'compute thread')} for {share} cores",
        evidence=f"{units.count(threads, 'thread')}, {share} cores for this process, "
        f"{busy:.1f} of them busy; matrix products take "
        f"{units.milliseconds(shared)} of {units.milliseconds(anatomy.step_ms)}{_cause(profile)}",
        cure=Cure(
            f"Give torch the cores: torch.set_num_threads({target}) or OMP_NUM_THREADS={target}.",
            savings.lines(
                _where(profile) or "before training",
                f"torch.set_num_threads({threads})",
                f"torch.set_num_threads({target})",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=_where(profile),
        boost=savings.boost(profile, "cpu-threads"),
        saves_ms=saves,
        reason=f"{target} threads instead of {threads}: {units.share(REACHED)} of the perfect "
        f"sharing of {units.milliseconds(shared)}, half of that for the operators bound by memory",
    )


def _target(profile: Profile, share: int) -> int:
    """Threads that can each have a core."""
    cores = profile.seen.cores if profile.seen is not None else None
    if cores is None or cores.physical is None:
        return share // 2
    processes = profile.job.world_size if profile.job is not None else 1
    return min(share, max(1, cores.physical // max(1, processes)))


def _where(profile: Profile) -> str | None:
    """The line of the script that sets the number of threads."""
    return profile.seen.cores.threads_where if profile.seen and profile.seen.cores else None


def _cause(profile: Profile) -> str:
    """What set the number of threads, for the evidence, or empty if unknown."""
    cores = profile.seen.cores if profile.seen is not None else None
    if cores is None:
        return ""
    causes = [f"set at {cores.threads_where}"] if cores.threads_where else []
    causes += [f"{variable} in the environment" for variable in cores.variables[:1]]
    return f"; {', '.join(causes)}" if causes else ""
