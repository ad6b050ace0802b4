"""Meter: turns frames into readings of the table's figures, with the labels that name them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import GpuSample
from flatout.reporting.monitor.outlets import figures
from flatout.reporting.monitor.outlets.figures import Figure, FigurePart, Labels, Noun

Key = tuple[str, str, Labels]


@dataclass(frozen=True)
class MeterReading:
    """One figure's value in one frame."""

    figure: Figure
    host: str
    labels: Labels
    value: float

    @property
    def key(self) -> Key:
        return self.figure.name, self.host, self.labels


class Meter:
    """The figures of one frame after another."""

    def __init__(self) -> None:
        self._last: dict[Key, MeterReading] = {}

    def read(self, frame: Frame) -> list[MeterReading]:
        """All figures of the frame, each once.

        A counter never falls while it exists, even if a job's slowest rank is found last.
        """
        now: dict[Key, MeterReading] = {}
        for reading in readings(frame):
            if reading.key in now:
                continue
            before = self._last.get(reading.key, reading)
            falls = reading.figure.kind == "counter" and reading.value < before.value
            now[reading.key] = before if falls else reading
        self._last = now
        return list(now.values())


def readings(frame: Frame) -> Iterator[MeterReading]:
    """All figures of one frame; for each noun, in the order of the table."""
    for host, noun, labels in _nouns(frame):
        for figure in _of_noun(type(noun)):
            for part in figure.parts:
                for more, value in _values(noun, part):
                    every = tuple(
                        (name, _encodable(word)) for name, word in (*labels, *part.labels, *more)
                    )
                    yield MeterReading(figure, _encodable(host), every, value)


def _of_noun(noun: type) -> Iterable[Figure]:
    return (figure for figure in figures.FIGURES if figure.noun is noun)


def _nouns(frame: Frame) -> Iterator[tuple[str, Noun, Labels]]:
    for machine in frame.machines:
        yield machine.hostname, machine, ()
        for disk in machine.disks:
            yield machine.hostname, disk, (("system.filesystem.mountpoint", disk.path),)
        for gpu in machine.gpus:
            yield machine.hostname, gpu, _gpu_labels(gpu)
        for process in machine.processes:
            owner = (("process.owner", process.user),) if process.user else ()
            yield machine.hostname, process, (("process.pid", str(process.pid)), *owner)
    for job in frame.jobs:
        yield job.hostname, job, ((figures.JOB, job.id),)
        for rank in job.ranks if job.state != "ended" else ():
            yield job.hostname, rank, ((figures.JOB, job.id), ("rank", str(rank.rank)))
    for alert in frame.alerts:
        if alert.state == "firing":
            yield alert.hostname, alert, _alert_labels(alert)


def _gpu_labels(gpu: GpuSample) -> Labels:
    name = (("hw.name", gpu.name),) if gpu.name else ()
    identity = gpu.uuid or str(gpu.index)
    return (
        ("hw.id", identity),
        ("hw.type", "gpu"),
        ("hw.vendor", gpu.vendor),
        *name,
        (figures.GPU, str(gpu.index)),
    )


def _alert_labels(alert: Alert) -> Labels:
    return (
        ("code", alert.code),
        ("severity", str(alert.severity)),
        (figures.JOB, alert.job or ""),
        ("subject", alert.subject),
    )


def _encodable(text: str) -> str:
    """File names may not be UTF-8; a single such name would cost all figures."""
    return text.encode("utf-8", "replace").decode()


def _values(noun: Noun, part: FigurePart) -> Iterator[tuple[Labels, float]]:
    """The field's current values: none if not known."""
    if (
        isinstance(noun, JobSample)
        and noun.state == "ended"
        and part.field not in figures.AFTER_THE_END
    ):
        return
    value: Any = getattr(noun, part.field)
    if value is None:
        return
    if part.each is not None:
        words = (value,) if isinstance(value, str) else value
        for word, count in Counter(words).items():
            yield ((part.each, f"{part.prefix}{word}"),), float(count)
    elif math.isfinite(value) or part.field == figures.LOSS:  # a NaN loss is a known value
        yield (), float(value) * part.scale
