"""A job or a dead process holds a GPU and does nothing with it.

## What it sees

For 15 minutes, the job has memory on the GPU, the GPU is busy less than 5% of the time, and no step
ends. Or for a minute, the driver names an owner of memory that is no longer a process of the
system, or only a zombie. Inside a container this is not known: there the driver counts processes
differently.

## Why it matters

Nobody else can use the GPU meanwhile, and on a rented machine it costs as much as one that trains.

## Cure

End the job if it has nothing left to do: a notebook left open, a run that prepares its data, a
waiting debugger. A dead process's memory is mostly held by its children, such as loader workers:
`sudo fuser -v /dev/nvidia*` names them, and the memory is free when they end.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine_sample import GpuSample
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, Rule, View

RULE = Rule(code="IDLE001", severity=Severity.NOTE, since="0.2.0")
WINDOW_S = 880.0
"""Slightly less than the 15 minutes of which every second is kept."""
BUSY, UPPER = 0.05, 0.10
LEAST_BYTES = 100_000_000
DEAD_S = 60.0
"""The list of processes may be 10 s old, and a large process takes seconds to free memory."""


def check(view: View) -> Iterator[Breach]:
    """One breach for each GPU that the job holds idle; for the machine, for each dead process."""
    if view.job is None and view.latest is not None:
        for gpu in view.latest.gpus:
            yield from _dead(gpu)
    job = _windows.runs(view.job)
    if job is None or view.latest is None or view.now_s - job.began_s < WINDOW_S:
        return
    if view.machine[0].time_s > view.now_s - WINDOW_S:
        return
    last = max((rank.steps[-1].time_s for rank in job.ranks if rank.steps), default=job.began_s)
    if view.now_s - last < WINDOW_S:
        return
    for gpu in view.latest.gpus:
        held = sum(use.memory_bytes or 0 for use in gpu.processes or () if use.pid in job.pids)
        busy = [
            other.utilization
            for sample in view.last(WINDOW_S)
            for other in sample.gpus
            if other.index == gpu.index and other.utilization is not None
        ]
        if held < LEAST_BYTES or len(busy) < 60 or fmean(busy) >= UPPER:
            continue
        yield Breach(
            title=f"the job holds GPU {gpu.index} and does nothing with it",
            evidence=f"{_windows.gib(held)} held, {fmean(busy):.0%} busy, no step for "
            f"{_windows.seconds(view.now_s - last)}",
            cure=Cure("End it if it has nothing left to do.", (f"kill {job.pid}",)),
            subject=f"GPU {gpu.index}",
            fires=fmean(busy) < BUSY,
        )


def _dead(gpu: GpuSample) -> Iterator[Breach]:
    for use in gpu.processes or ():
        held = use.memory_bytes or 0
        if use.alive is False and held >= LEAST_BYTES:
            yield Breach(
                title=f"a dead process holds memory of GPU {gpu.index}",
                evidence=f"{_windows.gib(held)} of process {use.pid}, which has ended",
                cure=Cure(
                    "Find and end the processes it left behind, such as loader workers.",
                    ("sudo fuser -v /dev/nvidia*",) if gpu.vendor == "nvidia" else (),
                ),
                subject=f"GPU {gpu.index}, process {use.pid}",
                hold_s=DEAD_S,
            )
