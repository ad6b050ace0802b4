"""Shared by the checks of loaders: figures of how a job gets its data, in milliseconds a step."""

from __future__ import annotations

from collections import defaultdict

from flatout.diagnosing.job import savings
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostLine
from flatout.nouns.profile import Profile
from flatout_agent.wire import LoaderFacts

BUSY = 0.5
"""Share of workers' time spent computing from which computing, not storage, is the limit."""
FETCH_MS = 0.3
"""The time to take over a batch from a worker."""
MOST = 16
"""Workers beyond which more no longer help a single process."""


def loader(profile: Profile) -> LoaderFacts | None:
    """The loader of the training loop: the first that was iterated."""
    loaders = profile.job.loaders if profile.job is not None else ()
    return loaders[0] if loaders else None


def line(profile: Profile) -> str | None:
    """Where the script iterates its loader, else where the device was seen waiting for it."""
    if profile.seen is not None and profile.seen.loader_where:
        return profile.seen.loader_where
    waits = (gap.where for gap in profile.gaps if gap.kind is Kind.WAIT_DATA and gap.where)
    return next((str(place) for place in waits), None)


def waited_ms(profile: Profile) -> float:
    """Milliseconds a step that the device (on a CPU: the training loop) waits for the loader.

    On a CPU the loop was also watched while nothing was recorded. The longer wait counts, since
    the time that recording adds is also taken off the wait.
    """
    recorded = profile.anatomy.part(Kind.WAIT_DATA)
    if savings.accelerated(profile) or profile.seen is None:
        return recorded
    return max(recorded, savings.within(profile, profile.seen.wait_s * 1000))


def restarting_ms(profile: Profile) -> float:
    """Milliseconds a step for restarting workers in each epoch, spread over its steps."""
    facts, watched = loader(profile), profile.seen
    if facts is None or watched is None or facts.num_workers < 1 or facts.persistent_workers:
        return 0.0
    if not facts.batches or watched.epochs < 2 or watched.loader_start_s is None:
        return 0.0
    first = prepared_ms(profile) or 0.0
    return max(0.0, watched.loader_start_s * 1000 - first) / facts.batches


def steady_wait_ms(profile: Profile) -> float:
    """Milliseconds a step of waiting for workers that are running."""
    return max(0.0, waited_ms(profile) - restarting_ms(profile))


def cores(profile: Profile) -> int | None:
    """Cores for this process: the usable ones, shared between the job's processes."""
    if profile.job is None:
        return profile.anatomy.cores
    return max(1, profile.job.cores // max(1, profile.job.world_size))


def cores_busy(profile: Profile) -> float | None:
    """Cores that the process itself keeps busy, or None if not measured."""
    watched = profile.seen
    if watched is None or watched.main_cpu_s is None or watched.step_s <= 0:
        return profile.anatomy.cores_busy
    return watched.main_cpu_s / watched.step_s


def room(profile: Profile) -> int:
    """Workers for which there are cores, counted as the boost loader-workers does; may be 0."""
    share = cores(profile)
    if share is None or share < 2:
        return 0
    return min(MOST, share - 1) if savings.accelerated(profile) else max(1, min(4, share // 4))


def prepared_ms(profile: Profile) -> float | None:
    """CPU time that workers need for a step's samples, or None if not measured."""
    watched = profile.seen
    return None if watched is None or watched.worker_cpu_s is None else watched.worker_cpu_s * 1000


def workers_busy(profile: Profile) -> float | None:
    """Share of their time that the workers compute, or None if no workers were measured."""
    facts, work, step = loader(profile), prepared_ms(profile), profile.anatomy.step_ms
    if facts is None or facts.num_workers < 1 or work is None or step <= 0:
        return None
    return work / (facts.num_workers * step)


def step_with_workers(profile: Profile, work_ms: float, workers: int) -> float:
    """Milliseconds of the step if `workers` prepare `work_ms` of samples beside it.

    It is the longer of the step without its wait and the workers' share of the work. On a CPU a
    worker without its own core shares one with a thread, for which all threads wait at the end of
    each operator: training loses the time that the worker takes.
    """
    workers = max(1, workers)
    training = max(0.0, profile.anatomy.step_ms - waited_ms(profile)) + FETCH_MS
    share = cores(profile)
    if not savings.accelerated(profile) and share:
        threads = profile.job.threads if profile.job is not None else share
        crowded = min(1.0, max(0, threads + workers - share) / workers)
        training += crowded * work_ms / workers
    return max(training, work_ms / workers)


def costliest_line(profile: Profile) -> HostLine | None:
    """The user's line on which the workers spend most, or None if not sampled."""
    lines = profile.host.worker_lines if profile.host is not None else ()
    by_place: dict[str, float] = defaultdict(float)
    for line in lines:
        by_place[str(line.where)] += line.ms
    where = max(by_place, key=lambda place: by_place[place], default=None)
    return next((line for line in lines if str(line.where) == where), None)
