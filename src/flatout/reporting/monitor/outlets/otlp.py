"""The figures by OTLP over HTTP: to a collector of OpenTelemetry, or to whatever speaks it.

The points are made as the SDK's own data: instruments would hold every set of labels that was ever
seen, while in a frame GPUs, jobs and alerts come and go. The official exporter sends them, so that
OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _COMPRESSION and _TIMEOUT mean what they mean elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.reporting.monitor.outlets.figures import HOST, Figure
from flatout.reporting.monitor.outlets.meter import Meter, MeterReading

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics
    from requests import Session

EVERY_S = 10.0
CLOSE_S = 3.0
"""At the end a receiver that is slow is waited for so long."""
PATH = "/v1/metrics"
INSTALL = "pip install 'flatout[otel]'"
Points = tuple[tuple[MeterReading, ...], float]


class OtlpSender:
    """Sends the newest frame's figures at an interval, in a thread of its own."""

    def __init__(
        self, send: Callable[[Points], str | None], name: str, warn: Callable[[str], None]
    ) -> None:
        """send: returns what went wrong; warn: is given a line where receiving ceases."""
        self._send, self._name, self._warn = send, name, warn
        self._meter = Meter()
        self._newest: Points | None = None
        self._told, self._over = threading.Event(), threading.Event()
        self._failing = self._abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="flatout-otlp")
        self._thread.start()

    def tell(self, frame: Frame) -> None:
        """A newer frame; the first is sent at once, which shows whether anybody is there."""
        self._newest = (tuple(self._meter.read(frame)), frame.time_s)
        self._told.set()

    def close(self) -> None:
        """Send what has not been sent yet, but wait for no receiver that is known to be gone."""
        self._over.set()
        self._told.set()
        self._thread.join(CLOSE_S if not self._failing else CLOSE_S / 10)
        if self._thread.is_alive():
            self._abandoned = True
            if not self._failing:
                self._warn(f"{self._name} did not take the last figures")

    def _run(self) -> None:
        self._told.wait()
        while True:
            over = self._over.is_set()  # asked before: what is told last is sent
            self._send_newest()
            if over:
                return
            self._over.wait(EVERY_S)

    def _send_newest(self) -> None:
        newest = self._newest
        if newest is None:
            return
        try:
            problem = self._send(newest)
        except Exception as error:  # the monitor goes on whatever a receiver answers
            problem = f"{type(error).__name__}: {error}"
        if problem is None and self._newest is newest:
            self._newest = None
        if problem is not None and not self._failing and not self._abandoned:
            self._warn(f"{self._name} failed: {problem}; it is tried again")
        self._failing = problem is not None


@contextmanager
def sending(url: str, warn: Callable[[str], None]) -> Iterator[OtlpSender]:
    """Send to the receiver at `url` until the end of the `with` statement.

    To a base address `/v1/metrics` is added. warn: is called with a line, once for each outage.
    Raises UserError for an address that can never work, and where the packages are absent.
    """
    endpoint, name = _endpoint(url)
    # What goes wrong is told by `warn`; the exporter's own words would be written into the screen.
    if not (logger := logging.getLogger("opentelemetry")).hasHandlers():
        logger.addHandler(logging.NullHandler())
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise UserError("--otlp needs packages of OpenTelemetry", INSTALL) from error
    outcomes: list[str | None] = []
    exporter = OTLPMetricExporter(endpoint=endpoint, session=_session(outcomes))

    def send(points: Points) -> str | None:
        return _exported(exporter, metrics_data(*points), outcomes)

    sender = OtlpSender(send, name, warn)
    try:
        yield sender
    finally:
        sender.close()
        exporter.shutdown()


def _endpoint(url: str) -> tuple[str, str]:
    """Where metrics are posted, and the name for messages: the rest of an address may be secret."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UserError(
            "--otlp needs an address that begins with http:// or https://",
            "--otlp http://127.0.0.1:4318",
        )
    path = parts.path.rstrip("/")
    path = path if path.endswith(PATH) else path + PATH
    return parts._replace(path=path).geturl(), f"--otlp {parts.hostname}"


def _session(outcomes: list[str | None]) -> Session:
    """A session that notes how each request ended: the exporter tells only whether it did well."""
    from requests import Response, Session
    from requests.exceptions import ConnectionError as NotReached
    from requests.exceptions import SSLError, Timeout

    class NotingSession(Session):
        def request(self, *args: Any, **kwargs: Any) -> Response:
            try:
                response = super().request(*args, **kwargs)
            except Exception as error:
                words = {Timeout: "it does not answer", SSLError: "its certificate is refused"}
                words[NotReached] = "it cannot be reached"
                found = (text for kind, text in words.items() if isinstance(error, kind))
                outcomes.append(next(found, f"{type(error).__name__}: {error}"))
                raise
            good = 200 <= response.status_code < 300
            outcomes.append(None if good else f"it answered {response.status_code}")
            return response

    return NotingSession()


def _exported(
    exporter: OTLPMetricExporter, data: MetricsData, outcomes: list[str | None]
) -> str | None:
    """Send it; what went wrong, if anything."""
    from opentelemetry.sdk.metrics.export import MetricExportResult

    outcomes.clear()
    try:
        done = exporter.export(data) is MetricExportResult.SUCCESS
    except OSError:  # older exporters raise some of what they do not try again
        done = False
    if outcomes and outcomes[-1] is not None:
        return outcomes[0]  # of several tries the first: the last may have had no time left
    return None if done else "the figures cannot be sent"


def metrics_data(readings: tuple[MeterReading, ...], time_s: float) -> MetricsData:
    """The readings as the SDK has them: a resource for each host."""
    from opentelemetry.sdk.metrics.export import MetricsData

    hosts: dict[str, dict[Figure, list[MeterReading]]] = {}
    for reading in readings:
        hosts.setdefault(reading.host, {}).setdefault(reading.figure, []).append(reading)
    return MetricsData(
        [
            _of_host(host, [_metric(*each, time_s) for each in by_figure.items()])
            for host, by_figure in hosts.items()
        ]
    )


def _of_host(host: str, metrics: list[Metric]) -> ResourceMetrics:
    from opentelemetry.sdk.metrics.export import ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    # Prometheus makes `instance` of service.instance.id: without it hosts would be one series.
    named = Resource({HOST: host, "service.instance.id": host})
    resource = Resource({"service.name": "flatout"}).merge(OTELResourceDetector().detect())
    scope = InstrumentationScope("flatout")
    return ResourceMetrics(resource.merge(named), [ScopeMetrics(scope, metrics, "")], "")


def _metric(figure: Figure, readings: list[MeterReading], time_s: float) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        NumberDataPoint,
        Sum,
    )

    points = [
        NumberDataPoint(
            dict(reading.labels), _nanoseconds(reading.began_s), _nanoseconds(time_s), reading.value
        )
        for reading in readings
    ]
    if figure.kind == "gauge":
        return Metric(figure.name, figure.help, figure.unit, Gauge(points))
    total = Sum(points, AggregationTemporality.CUMULATIVE, figure.kind == "counter")
    return Metric(figure.name, figure.help, figure.unit, total)


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e6) * 1000
