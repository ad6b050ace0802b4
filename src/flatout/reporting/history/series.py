"""From the frames of one run to the series that its report draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import GpuSample, MachineSample

T = TypeVar("T")
MOST_POINTS = 1500
"""Points of a curve: a screen cannot show more."""


@dataclass(frozen=True)
class RunMoment:
    """The run at one moment."""

    minutes: float
    """Minutes since the run's first frame."""
    job: JobSample
    machine: MachineSample | None
    gpus: tuple[GpuSample, ...]
    """The GPUs that the job uses, or all if those are not known."""


@dataclass(frozen=True)
class RunSeries:
    """Everything that is drawn of one run."""

    job: JobSample
    """The job at its end, with what was known at any time."""
    moments: tuple[RunMoment, ...]
    losses: tuple[tuple[int, float], ...]
    """(step, loss); finite ones only."""
    alerts: tuple[Alert, ...]
    """Each episode once, in its last state; in the order in which they began."""

    @property
    def lasted_s(self) -> float:
        """Seconds from its begin to its end, as far as it was watched."""
        began = self.job.began_s or 0.0
        last = self.moments[-1].minutes * 60 if self.moments else 0.0
        return max(last, self.job.ended_s - began if self.job.ended_s and began else 0.0)

    def values(self, figure: Callable[[RunMoment], float | None]) -> list[float]:
        """The finite values of a figure, in order."""
        values = (figure(moment) for moment in self.moments)
        return [value for value in values if value is not None and math.isfinite(value)]

    def usual(self, figure: Callable[[RunMoment], float | None]) -> float | None:
        """The median of a figure over the run."""
        values = self.values(figure)
        return median(values) if values else None


def of(frames: Iterable[Frame], job_id: str | None = None) -> RunSeries | None:
    """The series of one job, or None if it does not exist. Without `job_id`, the first one seen."""
    moments: list[RunMoment] = []
    losses: dict[int, float] = {}
    alerts: dict[tuple[object, ...], Alert] = {}
    last: JobSample | None = None
    start = 0.0
    for frame in frames:
        job = next((job for job in frame.jobs if job_id in (None, job.id)), None)
        if job is None:
            continue
        if last is None:
            start, job_id = frame.time_s, job.id
        last = job
        losses.update(_losses(job))
        alerts.update({(*alert.key, alert.since_s): alert for alert in frame.alerts})
        moments.append(_moment(frame, job, (frame.time_s - start) / 60))
    if last is None:
        return None
    ordered = sorted(alerts.values(), key=lambda alert: alert.since_s)
    told = tuple(alert for alert in ordered if alert.state != "pending")
    return RunSeries(last, tuple(thinned(moments)), tuple(thinned(sorted(losses.items()))), told)


def thinned(points: Sequence[T], most: int = MOST_POINTS) -> Sequence[T]:
    """At most `most` of the points, evenly spaced, including the first and the last."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(index * step)] for index in range(most)]


def _losses(job: JobSample) -> dict[int, float]:
    steps = {step.step: step.loss for step in job.recent_steps}
    if job.step is not None and not any(loss is not None for loss in steps.values()):
        steps[job.step] = job.loss
    return {step: loss for step, loss in steps.items() if loss is not None and math.isfinite(loss)}


def _moment(frame: Frame, job: JobSample, minutes: float) -> RunMoment:
    machines = [machine for machine in frame.machines if machine.hostname == job.hostname]
    machine = machines[0] if machines else next(iter(frame.machines), None)
    gpus = machine.gpus if machine is not None else ()
    used = tuple(gpu for gpu in gpus if gpu.index in job.gpus)
    return RunMoment(max(0.0, minutes), job, machine, used or gpus)
