"""Other programs, a quota or the virtual machine's host take cores while the threads wait for them.

## What it sees

Training on a CPU: a thread of the process was ready to run but had no core, or a quota held the
process back, for 5 % of the step or more.

## Why it matters

Torch splits each operator among its threads and waits for the last one. One thread without a core
holds up all the others, which spin meanwhile: a neighbour that takes one core of two can make a
step three times as long.

## Cure

End the other programs or give them other cores (taskset). If that is impossible, use fewer threads
than cores; under a quota, as many threads as it has cores. The gain is at least the time without a
core.

## References

- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
- https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu
- https://docs.kernel.org/scheduler/sched-stats.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import CoresSeen

CHECK = Check(code="HOST014", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.05
LEAST_OTHERS = 0.2
"""Cores that other programs must use to be named as the cause."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    cores = profile.seen.cores if profile.seen is not None else None
    if cores is None or savings.accelerated(profile):
        return
    if profile.job is not None and profile.job.threads > cores.cores:
        return  # its own threads compete for its cores: HOST004
    if _nobody_else(profile, cores):
        return
    queued_ms, throttled_ms = 1000 * (cores.queued_s or 0.0), 1000 * (cores.throttled_s or 0.0)
    lost_ms = savings.within(profile, max(queued_ms, throttled_ms))
    if lost_ms < LEAST_SHARE * profile.anatomy.step_ms:
        return
    title, cure, commands = _by_cause(cores, throttled_ms >= queued_ms / 2)
    yield Diagnosis(
        title=f"{title}: {units.milliseconds(lost_ms)} of the step without a core",
        evidence=_evidence(cores, queued_ms, throttled_ms),
        cure=Cure(cure, commands),
        severity=savings.severity(profile, lost_ms),
        saves_ms=lost_ms,
        reason=f"the {units.milliseconds(lost_ms)} in which a thread was ready and had no core; "
        "threads that wait for it lose more",
    )


def _nobody_else(profile: Profile, cores: CoresSeen) -> bool:
    """Whether the figures name nobody who could take the cores: nothing could be ended or made
    smaller.
    """
    if cores.throttled_s or cores.others_cores is None or cores.others_cores >= LEAST_OTHERS:
        return False
    job = profile.job
    workers = sum(loader.num_workers for loader in job.loaders) if job is not None else 0
    return job is not None and job.threads + workers <= cores.cores


def _by_cause(cores: CoresSeen, throttled: bool) -> tuple[str, str, tuple[str, ...]]:
    """Title, cure and its lines."""
    if throttled and cores.throttled_s:
        limit = max(1, int(cores.quota or cores.cores))
        return (
            "the CPU quota holds the process back",
            "Use as many threads as the quota has cores, or raise the quota.",
            (f"torch.set_num_threads({limit})",),
        )
    if (cores.others_cores or 0.0) >= LEAST_OTHERS:
        fewer = max(1, cores.cores - round(cores.others_cores or 0.0))
        return (
            "other programs take the cores",
            "End the other programs or keep them on other cores; else use fewer threads.",
            ("taskset -c 0 other-program", f"torch.set_num_threads({fewer})"),
        )
    lines = (f"torch.set_num_threads({cores.cores - 1})",) if cores.cores > 2 else ()
    return (
        "its own threads and processes wait for each other's cores",
        "Use fewer loader workers or fewer threads: together no more than there are cores.",
        lines,
    )


def _evidence(cores: CoresSeen, queued_ms: float, throttled_ms: float) -> str:
    parts = [f"one thread was ready without a core for {units.milliseconds(queued_ms)} a step"]
    if cores.others_cores is not None and cores.others_cores < LEAST_OTHERS:
        parts.append("no other program used a core for long")
    elif cores.others_cores is not None:
        names = f" ({', '.join(cores.others)})" if cores.others else ""
        parts.append(
            f"other programs used {cores.others_cores:.1f} of {cores.machine} cores{names}"
        )
    if throttled_ms:
        parts.append(f"the quota held it back for {units.milliseconds(throttled_ms)} a step")
    if cores.steal_s:
        parts.append(f"the machine's host took {units.milliseconds(1000 * cores.steal_s)} a step")
    return "; ".join(parts)
