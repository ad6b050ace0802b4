"""A job's memory grows from step to step and will run out.

## What it sees

The least memory of windows over at least 10 minutes and 30 windows rises (Mann-Kendall, p < 0.01)
by at least 1 GB and 5% of the machine's memory for the host, 256 MB and 2% for a GPU. The least of
a window counts, so that what a garbage collector frees now and then is no growth.

## Why it matters

The job is killed when the memory is used up, often hours later and without a message.

## Evidence

From where to where it grew, how fast, and when it will be used up.

## Cure

Most leaks keep tensors with their graphs: `losses.append(loss)` instead of `loss.item()`, lists
that are never emptied, workers that copy a list of Python objects. `flatout profile` looks for
these.

## References

- https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.nouns.finding import Cure, Severity
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, JobHistory, RankHistory, Rule, View

RULE = Rule(code="LEAK001", severity=Severity.WARNING, since="0.2.0", every_s=10.0)
LEAST_S = 600.0
WINDOWS = 40
LEAST_WINDOWS = 30
HOST_BYTES, HOST_SHARE = 2**30, 0.05
GPU_BYTES, GPU_SHARE = 256 * 2**20, 0.02
CHANCE = 0.01
WARM_UP_S = 60.0
CURE = "Look for tensors that are kept with their graphs, and for lists that only grow."


def check(view: View) -> Iterator[Breach]:
    """One breach for each rank's host memory and each GPU of the job."""
    job = _windows.runs(view.job)
    if job is None or view.latest is None or any(map(_windows.tuning, job.ranks)):
        return
    for rank in job.ranks:
        yield from _host(view, job, rank)
    for index in sorted({index for rank in job.ranks for index in rank.gpus}):
        yield from _gpu(view, job, index)


def _host(view: View, job: JobHistory, rank: RankHistory) -> Iterator[Breach]:
    points = [(t.time_s, float(t.memory_bytes)) for t in rank.trees if t.memory_bytes is not None]
    most = view.latest.memory_bytes if view.latest is not None else None
    least = max(HOST_BYTES, HOST_SHARE * most) if most else HOST_BYTES
    subject = f"rank {rank.rank}" if len(job.ranks) > 1 else "host memory"
    yield from _grown(job, _trained(rank, points), least, most, subject, "host memory")


def _gpu(view: View, job: JobHistory, index: int) -> Iterator[Breach]:
    seen = [(s.time_s, gpu) for s in view.machine for gpu in s.gpus if gpu.index == index]
    most = seen[-1][1].memory_bytes if seen else None
    least = max(GPU_BYTES, GPU_SHARE * most) if most else GPU_BYTES
    rank = next((rank for rank in job.ranks if index in rank.gpus), job.ranks[0])
    # What others on the GPU take is not the job's; where the driver does not say whose memory it
    # is, as in a container, all of it counts.
    own = [
        (tree.time_s, float(tree.gpu_memory_bytes)) for tree in rank.trees if tree.gpu_memory_bytes
    ]
    whole = [(t, float(gpu.memory_used_bytes)) for t, gpu in seen if gpu.memory_used_bytes]
    points = own if own and rank.gpus == (index,) else whole
    yield from _grown(job, _trained(rank, points), least, most, f"GPU {index}", "GPU memory")


def _trained(rank: RankHistory, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those since the warm-up; where nothing trains, nothing is a leak of steps."""
    if not rank.steps:
        return []
    begin = points[0][0] + WARM_UP_S if points else 0.0
    return [point for point in points if begin < point[0] <= rank.steps[-1].time_s + 5]


def _grown(
    job: JobHistory,
    points: Sequence[tuple[float, float]],
    least: float,
    most: int | None,
    subject: str,
    words: str,
) -> Iterator[Breach]:
    if len(points) < LEAST_WINDOWS or points[-1][0] - points[0][0] < LEAST_S:
        return
    lows = _lows(points)
    if len(lows) < LEAST_WINDOWS or _windows.rises(lows) >= CHANCE:
        return
    growth = _windows.slope(lows) * (len(lows) - 1)
    if growth < 0.5 * least:
        return
    lasted = points[-1][0] - points[0][0]
    rate = growth / lasted
    left = (most - points[-1][1]) / rate if most and most > points[-1][1] else None
    ends = f"; used up in {_windows.seconds(left)}" if left is not None else ""
    # Growth that was once and is over is no leak: the second half must grow as well.
    half = lows[len(lows) // 2 :]
    goes_on = _windows.slope(half) * (len(half) - 1) >= 0.25 * growth
    yield Breach(
        title=f"{words} grows by {_windows.gib(3600 * rate)} an hour",
        evidence=f"{_windows.gib(lows[0])} to {_windows.gib(lows[-1])} in "
        f"{_windows.seconds(lasted)}{ends}",
        cure=Cure(CURE, (f"flatout profile {job.program}",)),
        subject=subject,
        fires=growth >= least and goes_on,
    )


def _lows(points: Sequence[tuple[float, float]]) -> list[float]:
    """The least of each of so many windows of equal length."""
    begin, end = points[0][0], points[-1][0]
    width = (end - begin) / WINDOWS
    lows: dict[int, float] = {}
    for time_s, value in points:
        number = min(WINDOWS - 1, int((time_s - begin) / width))
        lows[number] = min(lows.get(number, value), value)
    return [lows[number] for number in sorted(lows)]
