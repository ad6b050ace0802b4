"""The text endpoint, read by Prometheus's own parser."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flatout.nouns.errors import UserError
from flatout.reporting.monitor.outlets import prometheus
from monitored import FRAME
from reporting.monitor import frames


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def scraped(port: int) -> Iterator[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


def test_what_prometheus_reads(port: int) -> None:
    with prometheus.serving(str(port)) as exposition:
        assert [sample.name for sample in scraped(port)] == ["flatout_up"]
        exposition.tell(FRAME)
        everything = list(scraped(port))
        exposition.tell(frames.eight_gpus())
        samples = list(scraped(port))
    assert len(everything) > 50
    assert len({(s.name, tuple(sorted(s.labels.items()))) for s in everything}) == len(everything)
    busy = {
        sample.labels["hw_id"] if "hw_id" in sample.labels else sample.labels["flatout_gpu"]: sample
        for sample in samples
        if sample.name == "hw_gpu_utilization_ratio"
    }
    assert len(busy) == 8
    assert all(sample.labels["host_name"] == "node1" for sample in busy.values())
    firing = [sample for sample in samples if sample.name.startswith("flatout_alert")]
    assert {sample.labels["code"] for sample in firing} == {"HANG001", "WAIT001"}
    names = {sample.name for sample in samples}
    assert any(name.startswith("flatout_train_step") for name in names)
    assert not any(sample.labels.get("temperature") for sample in samples)


def test_a_name_that_is_no_utf8_costs_no_figure(port: int) -> None:
    odd = 'tr\udcff "x" \\ \n.py'
    job = replace(FRAME.jobs[0], program=odd)
    with prometheus.serving(str(port)) as exposition:
        exposition.tell(replace(FRAME, jobs=(job, *FRAME.jobs[1:])))
        samples = list(scraped(port))
    assert len(samples) > 50
    (info,) = [s for s in samples if s.name == "flatout_train_info" and "?" in s.labels["program"]]
    assert info.labels["program"] == 'tr? "x" \\ \n.py'


def test_ports(port: int) -> None:
    for address in ("x", "1:2:3", "99999", "", "host:"):
        with pytest.raises(UserError, match="is no port"), prometheus.serving(address):
            pass
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UserError, match="nothing can be served"),
        prometheus.serving(f"127.0.0.1:{port}"),
    ):
        pass
