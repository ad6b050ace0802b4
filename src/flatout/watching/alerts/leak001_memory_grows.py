"""A job's memory grows from step to step and will run out.

## What it sees

In windows over at least 10 minutes and at least 30 windows, the least memory rises (Mann-Kendall,
p < 0.01) by at least 1 GB and 5% of the machine's memory for the host, or 256 MB and 2% for a GPU.
The least in a window counts, so garbage that is collected now and then is not growth. Rises just
after batches of new shapes are left out: longer samples and larger batches need more.

For a GPU, only memory of the job's own processes counts. If the driver lists no processes, as in a
container, all used memory counts; if it lists only others' processes, nothing is known.

## Why it matters

The job is killed when the memory is used up, often hours later and without a message.

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
LATE_S = 15.0
"""A driver's list of processes is up to 10 s old."""
WARM_UP_S = 60.0
CURE = "Look for tensors that are kept with their graphs, and for lists that only grow."


def check(view: View) -> Iterator[Breach]:
    """One breach for each rank's host memory and each GPU of the job."""
    job = _windows.runs(view.job)
    if job is None or view.latest is None or any(map(_windows.tuning, job.ranks)):
        return
    for rank in job.ranks:
        trees = [(t.time_s, t.memory_bytes) for t in rank.trees]
        points = [(time_s, float(size)) for time_s, size in trees if size is not None]
        most = view.latest.memory_bytes
        least = max(HOST_BYTES, HOST_SHARE * most) if most else HOST_BYTES
        subject = f"rank {rank.rank}" if len(job.ranks) > 1 else "host memory"
        yield from _grown(job, rank, points, least, most, subject, "host memory")
    for index in sorted({index for rank in job.ranks for index in rank.gpus}):
        yield from _gpu(view, job, index)


def _gpu(view: View, job: JobHistory, index: int) -> Iterator[Breach]:
    seen = [(s.time_s, gpu) for s in view.machine for gpu in s.gpus if gpu.index == index]
    if not seen:
        return
    most = seen[-1][1].memory_bytes
    least = max(GPU_BYTES, GPU_SHARE * most) if most else GPU_BYTES
    rank = next(rank for rank in job.ranks if index in rank.gpus)
    alone = not any(gpu.processes for _, gpu in seen) and seen[-1][1].vendor != "apple"
    points = []
    for time_s, gpu in seen:
        used = gpu.memory_used_bytes
        if not alone:  # the job's own processes, if the driver reports all of them
            sizes = [use.memory_bytes for use in gpu.processes or () if use.pid in job.pids]
            known = [size for size in sizes if size is not None]
            used = sum(known) if sizes and len(known) == len(sizes) else None
        if used:
            points.append((time_s, float(used)))
    yield from _grown(job, rank, points, least, most, f"GPU {index}", "GPU memory")


def _trained(rank: RankHistory, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points since the warm-up; without training, nothing counts as a leak of steps."""
    if not rank.steps:
        return []
    begin = points[0][0] + WARM_UP_S if points else 0.0
    return [point for point in points if begin < point[0] <= rank.steps[-1].time_s + 5]


def _grown(
    job: JobHistory,
    rank: RankHistory,
    points: Sequence[tuple[float, float]],
    least: float,
    most: int | None,
    subject: str,
    words: str,
) -> Iterator[Breach]:
    points = _trained(rank, points)
    if len(points) < LEAST_WINDOWS or points[-1][0] - points[0][0] < LEAST_S:
        return
    lows, explained = _lows(points, rank.new_shapes_s)
    if len(lows) < LEAST_WINDOWS or _windows.rises(lows) >= CHANCE:
        return
    growth = _windows.slope(lows) * (len(lows) - 1)
    if growth < 0.5 * least:
        return
    lasted = points[-1][0] - points[0][0]
    rate = growth / lasted
    left = (most - points[-1][1]) / rate if most and most > points[-1][1] else None
    ends = f"; used up in {_windows.seconds(left)}" if left is not None else ""
    ends += "; growth that came with new batch shapes is not counted" if explained else ""
    # Growth that is over is not a leak: the second half must grow as well.
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


def _lows(
    points: Sequence[tuple[float, float]], new_shapes_s: Sequence[float]
) -> tuple[list[float], bool]:
    """The least of each of `WINDOWS` equal windows, without rises after new shapes.

    Also returns whether there were such rises.
    """
    begin, end = points[0][0], points[-1][0]
    width = (end - begin) / WINDOWS
    lows: dict[int, float] = {}
    for time_s, value in points:
        number = min(WINDOWS - 1, int((time_s - begin) / width))
        lows[number] = min(lows.get(number, value), value)
    # A rise within a window shows in the least of the next one.
    excused = {
        int((time_s - begin + late_s) // width) + after
        for time_s in new_shapes_s
        for late_s in (0.0, LATE_S)
        for after in (0, 1)
    }
    left, before, explained = [], None, 0.0
    for number in sorted(lows):
        if before is not None and number in excused:
            explained += max(0.0, lows[number] - before)
        before = lows[number]
        left.append(before - explained)
    return left, explained > 0
