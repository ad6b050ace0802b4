"""What a receiver of OTLP is sent, decoded by the protocol's own messages, and bad receivers."""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.reporting.monitor.outlets import figures, otlp
from flatout.reporting.monitor.outlets.meter import readings
from monitored import FRAME

WAIT_S = 120.0
LATER = replace(FRAME, time_s=FRAME.time_s + 1, jobs=(replace(FRAME.jobs[0], step=121),))


class Receiver:
    """What it was sent; `status` is its answer, and it waits for `open` before it gives one."""

    def __init__(self) -> None:
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.requests: list[Any] = []
        self.changed = threading.Condition()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self.changed:
            self.paths.append(path)
            self.headers.append(headers)
            self.requests.append(ExportMetricsServiceRequest.FromString(body))
            self.changed.notify_all()

    def await_requests(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, WAIT_S)


@contextmanager
def serving(receiver: Receiver, port: int = 0) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.take(self.path, headers, body)
            receiver.open.wait(WAIT_S)
            try:
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "1000000")  # no second try within one export
                self.end_headers()
            except OSError:  # whoever asked waits no more
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            receiver.open.set()
            server.shutdown()
            thread.join()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def points(request: Any) -> Iterator[tuple[str, Any, Any]]:
    for resource in request.resource_metrics:
        (host,) = [
            item.value.string_value
            for item in resource.resource.attributes
            if item.key == "host.name"
        ]
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                yield host, metric, point


def key(name: str, host: str, labels: Any) -> tuple[str, str, frozenset[tuple[str, str]]]:
    return name, host, frozenset(labels)


def told(request: Any) -> dict[Any, float]:
    found = [
        (
            key(m.name, host, ((a.key, a.value.string_value) for a in p.attributes)),
            p.as_double,
        )
        for host, m, p in points(request)
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def expected(frame: Frame) -> dict[Any, float]:
    return {key(r.figure.name, r.host, r.labels): r.value for r in readings(frame)}


def test_what_a_receiver_is_sent(receiver: Receiver, warnings: list[str]) -> None:
    with (
        serving(receiver) as port,
        otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender,
    ):
        sender.tell(FRAME)
        receiver.await_requests(1)
        sender.tell(LATER)
    first, last = receiver.requests
    assert receiver.paths == ["/v1/metrics"] * 2
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"
    assert len(told(first)) > 50
    assert told(first) == expected(FRAME)
    assert told(last) == expected(LATER)
    assert warnings == []
    (resource,) = first.resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "flatout"
    assert attributes["service.instance.id"] == attributes["host.name"] == "node1"
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "flatout"


def test_units_kinds_and_times(receiver: Receiver, warnings: list[str]) -> None:
    with (
        serving(receiver) as port,
        otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender,
    ):
        sender.tell(FRAME)
        receiver.await_requests(1)
        sender.tell(LATER)
    kinds = {"gauge": "gauge", "counter": "sum", "level": "sum"}
    table = {figure.name: figure for figure in figures.FIGURES}
    seen = set()
    for request, time_s in zip(receiver.requests, (FRAME.time_s, LATER.time_s), strict=True):
        for _, metric, point in points(request):
            figure = table[metric.name]
            seen.add(metric.name)
            assert (metric.unit, metric.description) == (figure.unit, figure.help)
            assert metric.WhichOneof("data") == kinds[figure.kind]
            assert point.time_unix_nano == time_s * 1e9
            if figure.kind != "gauge":
                cumulative = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
                assert metric.sum.aggregation_temporality == cumulative
                assert metric.sum.is_monotonic == (figure.kind == "counter")
                assert point.start_time_unix_nano == FRAME.time_s * 1e9
    assert seen == {reading.figure.name for reading in readings(FRAME)}


def test_hosts_are_resources_and_a_loss_that_is_nan_is_sent(
    receiver: Receiver, warnings: list[str]
) -> None:
    other = replace(FRAME.machines[0], hostname="node2")
    job = replace(FRAME.jobs[0], loss=math.nan, ranks=())
    frame = replace(FRAME, machines=(*FRAME.machines, other), jobs=(job,))
    with (
        serving(receiver) as port,
        otlp.sending(f"http://127.0.0.1:{port}/in/v1/metrics", warnings.append) as sender,
    ):
        sender.tell(frame)
    (request,) = receiver.requests
    assert receiver.paths == ["/in/v1/metrics"]
    assert {host for host, _, _ in points(request)} == {"node1", "node2"}
    assert len(request.resource_metrics) == 2
    (loss,) = [p.as_double for _, m, p in points(request) if m.name == "flatout.train.loss"]
    assert math.isnan(loss)


def test_the_users_own_settings_hold(
    receiver: Receiver, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab,host.name=no")
    with (
        serving(receiver) as port,
        otlp.sending(f"http://127.0.0.1:{port}/", warnings.append) as sender,
    ):
        sender.tell(FRAME)
    assert receiver.headers[0]["authorization"] == "Bearer secret"
    (resource,) = receiver.requests[0].resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert (attributes["deployment.environment"], attributes["host.name"]) == ("lab", "node1")


def test_nothing_is_sent_twice_and_nothing_where_nothing_was_told(
    receiver: Receiver, warnings: list[str]
) -> None:
    with serving(receiver) as port:
        with otlp.sending(f"http://127.0.0.1:{port}", warnings.append):
            pass
        assert receiver.requests == []
        with otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender:
            sender.tell(FRAME)
            receiver.await_requests(1)
            wait_until(lambda: sender._newest is None)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", [503, 404, 302])
def test_one_warning_for_each_outage(
    status: int, receiver: Receiver, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "EVERY_S", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{WAIT_S}")
    with (
        serving(receiver) as port,
        otlp.sending(f"http://user:secret@127.0.0.1:{port}", warnings.append) as sender,
    ):
        for outage in (1, 2):
            receiver.status = status
            sender.tell(FRAME)
            before = len(receiver.requests)
            receiver.await_requests(before + 4)
            assert len(warnings) == outage
            receiver.status = 200
            sender.tell(LATER)
            wait_until(lambda: sender._newest is None and not sender._failing)
            assert told(receiver.requests[-1]) == expected(LATER)
    line = f"--otlp 127.0.0.1 failed: it answered {status}; it is tried again"
    assert warnings == [line] * 2


def test_a_receiver_that_hangs_holds_up_nobody(
    receiver: Receiver, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{WAIT_S}")
    receiver.open.clear()
    with serving(receiver) as port:
        with otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender:
            sender.tell(FRAME)
            receiver.await_requests(1)
            for _ in range(1000):
                sender.tell(LATER)
        assert warnings == ["--otlp 127.0.0.1 did not take the last figures"]
        receiver.open.set()
        sender._thread.join(WAIT_S)
        assert not sender._thread.is_alive()
    assert len(warnings) == 1


def test_a_receiver_that_never_answers_is_told_of(
    receiver: Receiver, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "EVERY_S", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    receiver.open.clear()
    with (
        serving(receiver) as port,
        otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender,
    ):
        sender.tell(FRAME)
        receiver.await_requests(4)
        receiver.open.set()
    assert warnings == ["--otlp 127.0.0.1 failed: it does not answer; it is tried again"]


def test_a_receiver_that_is_gone_and_comes_back(
    receiver: Receiver,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(otlp, "EVERY_S", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    port = free_port()
    with otlp.sending(f"http://127.0.0.1:{port}", warnings.append) as sender:
        sender.tell(FRAME)
        wait_until(lambda: bool(warnings))
        with serving(receiver, port):
            wait_until(lambda: sender._newest is None)
    assert [line.partition(":")[0] for line in warnings] == ["--otlp 127.0.0.1 failed"]
    assert told(receiver.requests[-1]) == expected(FRAME)
    assert capfd.readouterr() == ("", "")  # the exporter's own words are not on the screen


def test_how_a_receiver_that_is_gone_is_told_of() -> None:
    outcomes: list[str | None] = []
    with otlp._session(outcomes) as session, pytest.raises(OSError, match="refused"):
        session.request("POST", f"http://127.0.0.1:{free_port()}/")
    assert outcomes == ["it cannot be reached"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4318", "grpc://host:4317", "http://", "http://host:99999", "http://[::1"]
)
def test_addresses_that_can_never_work(url: str) -> None:
    with pytest.raises(UserError, match="--otlp needs an address"), otlp.sending(url, print):
        pass


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with (
        pytest.raises(UserError, match="needs packages") as caught,
        otlp.sending("http://127.0.0.1:4318", print),
    ):
        pass
    assert caught.value.next_step == "pip install 'flatout[otel]'"
