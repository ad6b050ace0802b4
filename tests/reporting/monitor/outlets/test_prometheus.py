"""The text endpoint, read by Prometheus's own parser, and what the dashboard asks of it."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flatout.nouns.errors import UserError
from flatout.reporting.monitor.outlets import prometheus
from monitored import FRAME
from ports import free_port
from reporting.monitor import frames

DASHBOARD = Path(__file__).parents[4] / "docs/assets/grafana-flatout.json"
METRIC = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")


@pytest.fixture
def port() -> int:
    return free_port()


def scraped(port: int) -> Iterator[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_name_that_is_no_utf8_costs_no_figure(port: int) -> None:
    odd = 'tr\udcff "x" \\ \n.py'
    job = replace(FRAME.jobs[0], program=odd)
    with prometheus.serving(str(port)) as exposition:
        exposition.tell(replace(FRAME, jobs=(job, *FRAME.jobs[1:])))
        samples = list(scraped(port))
    assert len(samples) > 50
    (info,) = [s for s in samples if s.name == "flatout_train_info" and "?" in s.labels["program"]]
    assert info.labels["program"] == 'tr? "x" \\ \n.py'


def queries(document: Any) -> Iterator[str]:
    """Every expression in PromQL, wherever it stands."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("expr", "query") and isinstance(value, str) and "{" in value:
                yield value
            yield from queries(value)
    elif isinstance(document, list):
        for value in document:
            yield from queries(value)


@pytest.mark.slow
def test_what_the_dashboard_asks_for_is_served(port: int) -> None:
    with prometheus.serving(str(port)) as exposition:
        exposition.tell(FRAME)
        found: dict[str, set[str]] = {}
        for sample in scraped(port):
            found.setdefault(sample.name, set()).update(sample.labels)
    asked = [*queries(json.loads(DASHBOARD.read_text(encoding="utf-8")))]
    assert len(asked) > 40
    for query in asked:
        for name, matchers in METRIC.findall(query):
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= found[name], query


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
