"""A job shares its GPU, cores or memory with others that take a large part.

## What it sees

For 60 s, another program uses 5% of a GPU of the job, or 500 MB of its memory; the hypervisor gives
10% of the cores' time to other machines; the container's CPU quota is exhausted in 20% of the time;
or 10 MB a second are read back from swap.

## Why it matters

The job lacks what others take, and its times vary from step to step.

## Cure

End the other program or move one of the two; ask for a larger quota; use less memory.

## References

- https://docs.kernel.org/admin-guide/cgroup-v2.html
- https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine_sample import GpuSample
from flatout.watching.alerts import _windows
from flatout.watching.rules import Breach, JobHistory, Rule, View

RULE = Rule(code="SHARE001", severity=Severity.WARNING, since="0.2.0")
HOLD_S = 60.0
WINDOW_S = 30.0
LEAST_SAMPLES = 10
SHARE_OF_GPU, BYTES_OF_GPU = 0.05, 500_000_000
STEAL, THROTTLED, SWAP = 0.10, 0.20, 10_000_000.0
LOWER = 0.6
"""Share of a threshold below which an alert is over."""


def check(view: View) -> Iterator[Breach]:
    """One breach for each shared thing: GPUs for each job, the rest once for all jobs."""
    job = _windows.runs(view.job)
    if job is not None and view.latest is not None:
        for gpu in view.latest.gpus:
            yield from _gpu(view, job, gpu)
    if view.job is None and any(map(_windows.runs, view.jobs)):
        window = view.last(WINDOW_S)
        steal = _mean([sample.cpu_steal for sample in window])
        if steal is not None and steal >= LOWER * STEAL:
            yield Breach(
                title=f"the hypervisor gives {steal:.0%} of the cores' time to others",
                evidence=f"mean of the last {WINDOW_S:.0f} s",
                cure=Cure("Move to a machine with cores of its own."),
                subject="cores",
                hold_s=HOLD_S,
                fires=steal >= STEAL,
            )
        throttled = _mean([sample.cpu_throttled for sample in window])
        if throttled is not None and throttled >= LOWER * THROTTLED:
            cores = window[-1].cores
            quota = f" of {cores:g} cores" if cores else ""
            yield Breach(
                title=f"the CPU quota{quota} holds training back {throttled:.0%} of the time",
                evidence=f"mean of the last {WINDOW_S:.0f} s, from the control group's statistics",
                cure=Cure("Ask for a larger quota, or use fewer threads and loader workers."),
                subject="quota",
                hold_s=HOLD_S,
                fires=throttled >= THROTTLED,
            )
        swap = _mean([sample.swap_in_bytes_per_s for sample in window])
        if swap is not None and swap >= LOWER * SWAP:
            yield Breach(
                title=f"{_windows.gib(swap)} a second are read back from swap",
                evidence=f"mean of the last {WINDOW_S:.0f} s",
                cure=Cure(
                    "Use less memory: fewer loader workers, a smaller cache; end other programs."
                ),
                subject="swap",
                hold_s=HOLD_S,
                fires=swap >= SWAP,
            )


def _gpu(view: View, job: JobHistory, gpu: GpuSample) -> Iterator[Breach]:
    if not any(gpu.index in rank.gpus for rank in job.ranks):
        return
    for use in gpu.processes or ():
        if use.pid in job.pids or use.alive is False:  # what a dead process holds is IDLE001
            continue
        share, size = use.utilization or 0.0, use.memory_bytes or 0
        if share < LOWER * SHARE_OF_GPU and size < LOWER * BYTES_OF_GPU:
            continue
        parts = [f"{share:.0%} of its time"] if use.utilization is not None else []
        parts += [_windows.gib(size)] if size else []
        yield Breach(
            title=f"process {use.pid} uses GPU {gpu.index} as well",
            evidence=" and ".join(parts),
            cure=Cure("End it, or move one of the two.", (f"ps -fp {use.pid}",)),
            subject=f"GPU {gpu.index}, process {use.pid}",
            hold_s=HOLD_S,
            fires=share >= SHARE_OF_GPU or size >= BYTES_OF_GPU,
        )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) >= LEAST_SAMPLES else None
