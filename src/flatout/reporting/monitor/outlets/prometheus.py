"""The figures for Prometheus: a text endpoint, on this machine only unless an address is given."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.reporting.monitor.outlets import figures
from flatout.reporting.monitor.outlets.figures import HOST, Figure, FigurePart, Labels, Noun

ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:]+\]|[^:\s]+):)?(?P<port>[0-9]{1,5})")
INSTALL = "pip install prometheus-client"

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
        for reading in readings_of(frame):
            if reading.key in now:
                continue
            before = self._last.get(reading.key, reading)
            falls = reading.figure.kind == "counter" and reading.value < before.value
            now[reading.key] = before if falls else reading
        self._last = now
        return list(now.values())


class Exposition:
    """A prometheus_client collector: at each scrape, the figures of the newest frame."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._readings: list[MeterReading] = []
        self._lock = threading.Lock()

    def tell(self, frame: Frame) -> None:
        """Take a newer frame."""
        readings = self._meter.read(frame)
        with self._lock:
            self._readings = readings

    def describe(self) -> Iterable[Any]:
        """Nothing: no figure is known before the first frame."""
        return ()

    def collect(self) -> Iterator[Any]:
        """One family for each known figure."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            readings = self._readings
        yield GaugeMetricFamily("flatout_up", "flatout monitor runs.", value=1)
        families: dict[Figure, dict[tuple[str, ...], list[MeterReading]]] = {}
        for reading in readings:
            names = tuple(name for name, _ in reading.labels)
            families.setdefault(reading.figure, {}).setdefault(names, []).append(reading)
        for figure, by_labels in families.items():
            kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            every = list(dict.fromkeys(name for names in by_labels for name in names))
            labels = [re.sub(r"[^a-zA-Z0-9]+", "_", name) for name in (HOST, *every)]
            family = kind(figure.prometheus, figure.help, labels=labels)
            for reading in (one for some in by_labels.values() for one in some):
                values = dict(reading.labels)
                row = [reading.host, *(values.get(name, "") for name in every)]
                family.add_metric(row, reading.value)
            yield family


@contextmanager
def serving(address: str) -> Iterator[Exposition]:
    """Serve `[HOST:]PORT` until the end of the `with` statement.

    Raises UserError if the address is invalid or taken, or the package is missing.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise UserError(
            f"--prometheus {address!r} is no port", "--prometheus 9400, or 0.0.0.0:9400"
        )
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise UserError("--prometheus needs the package prometheus-client", INSTALL) from error
    exposition, registry = Exposition(), CollectorRegistry()
    registry.register(exposition)
    host = (match["host"] or "127.0.0.1").strip("[]")
    try:
        server, thread = start_http_server(int(match["port"]), host, registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"nothing can be served on {host}, port {match['port']}: {reason}",
            "choose another port for --prometheus",
        ) from error
    try:
        yield exposition
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def readings_of(frame: Frame) -> Iterator[MeterReading]:
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
            name = (("hw.name", gpu.name),) if gpu.name else ()
            identity = gpu.uuid or str(gpu.index)
            labels = (
                ("hw.id", identity),
                ("hw.type", "gpu"),
                ("hw.vendor", gpu.vendor),
                *name,
                (figures.GPU, str(gpu.index)),
            )
            yield machine.hostname, gpu, labels
    for job in frame.jobs:
        yield job.hostname, job, ((figures.JOB, job.id),)
        for rank in job.ranks if job.state != "ended" else ():
            yield job.hostname, rank, ((figures.JOB, job.id), ("rank", str(rank.rank)))
    for alert in frame.alerts:
        if alert.state == "firing":
            about = (
                ("code", alert.code),
                ("severity", str(alert.severity)),
                (figures.JOB, alert.job or ""),
                ("subject", alert.subject),
            )
            yield alert.hostname, alert, about


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
