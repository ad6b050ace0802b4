"""The figures for Prometheus: a text endpoint, on this machine only unless an address is given."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.reporting.monitor.outlets.figures import HOST, Figure
from flatout.reporting.monitor.outlets.meter import Meter, MeterReading

ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:]+\]|[^:\s]+):)?(?P<port>[0-9]{1,5})")
INSTALL = "pip install prometheus-client"


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
            labels = [_label(name) for name in (HOST, *every)]
            family = kind(figure.prometheus, figure.help, labels=labels)
            for reading in (one for some in by_labels.values() for one in some):
                values = dict(reading.labels)
                row = [reading.host, *(values.get(name, "") for name in every)]
                family.add_metric(row, reading.value)
            yield family


def _label(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name)


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
