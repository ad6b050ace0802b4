"""The dashboard: whole, of the figures that are served, and understood by Prometheus itself."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from flatout.nouns.finding import Severity
from flatout.nouns.frame import Frame
from flatout.reporting.monitor.outlets import figures, prometheus
from flatout.reporting.monitor.outlets.grafana import COLOURS, PANELS, dashboard
from monitored import FRAME

Json = dict[str, Any]
WAIT_S = 120.0
VARIABLES = {"$host": ".*", "$job": ".*", "$__range": "5m"}
METRIC = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
# Words of PromQL that stand before a bracket, and what a query of a variable begins with.
OTHERS = {"max", "by", "without", "on", "group_left", "count", "vector", "or", "last_over_time"}
NOT_SHOWN = {
    "flatout.gpu.power.limit.default": "it is the power limit where nobody has lowered that",
    "flatout.process.cpu.usage": "of single processes the monitor itself tells more",
    "flatout.process.gpu.memory.usage": "likewise",
    "flatout.process.memory.usage": "likewise",
    "flatout.train.exit_code": "END001 tells of a job that failed",
    "flatout.train.gpu": "for queries that bring jobs and GPUs together",
    "flatout.train.rank.cpu.usage": "the job's sum is shown",
    "flatout.train.rank.gpu.memory.usage": "likewise",
    "flatout.train.rank.loss": "the job's mean is shown",
    "flatout.train.rank.memory.usage": "the job's sum is shown",
    "flatout.train.rank.samples": "likewise",
    "flatout.train.rank.step.time": "HANG001 tells of a rank that stopped",
    "flatout.train.start_time": "the row of its state begins there",
}
"""Figures without a panel, and why."""


def panels() -> list[Json]:
    return list(dashboard()["panels"])


def targets() -> Iterator[tuple[Json, Json]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel, target


def variables() -> dict[str, Json]:
    return {variable["name"]: variable for variable in dashboard()["templating"]["list"]}


def queries() -> Iterator[str]:
    """Every PromQL expression, as it is written."""
    for _, target in targets():
        yield target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["expr"]
    match = re.fullmatch(r"query_result\((.+)\)", variables()["job"]["query"]["query"])
    assert match is not None
    yield match[1]


def filled(text: str, **chosen: str) -> str:
    values = VARIABLES | {f"${name}": value for name, value in chosen.items()}
    for name, value in values.items():
        text = text.replace(f"[{name}]", f"[{value}]").replace(name, value)
    assert "$" not in text
    return text


def served(frame: Frame) -> dict[str, set[str]]:
    """The labels of each metric of an exposition, by Prometheus's own parser."""
    exposition, registry = prometheus.Exposition(), CollectorRegistry()
    registry.register(exposition)
    exposition.tell(frame)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_document() -> None:
    made = dashboard()
    assert made == json.loads(json.dumps(made, allow_nan=False))
    assert made["schemaVersion"] == 42
    assert list(variables()) == ["datasource", "host", "job"]
    assert variables()["datasource"]["query"] == "prometheus"
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) == len(set(numbers))
    for panel, target in targets():
        assert panel["datasource"] == target["datasource"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"]
    titles = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert titles == ["Alerts", "Jobs", "GPUs", "Machine"]
    names = [panel["title"] for panel in panels()]
    assert len(names) == len(set(names))


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_figure_has_a_panel_or_a_reason() -> None:
    every = (panel for row in PANELS.values() for panel in row)
    shown = {name.partition(":")[0] for p in every for name in (*p.names, *p.limits)}
    shown.add("flatout.train.info")  # in every legend of a job
    assert {figure.name for figure in figures.FIGURES} - shown == set(NOT_SHOWN)


def test_what_is_asked_for_is_served() -> None:
    found = served(FRAME)
    for query in queries():
        asked = METRIC.findall(query)
        assert asked
        words = set(re.findall(r"\b[a-z_]+(?=\s*[({])", query))
        assert words - OTHERS <= {name for name, _ in asked}
        for name, matchers in asked:
            assert name in found
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= found[name]
    match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables()["host"]["query"]["query"])
    assert match is not None
    assert match[2] in found[match[1]]


def test_what_legends_name_is_a_label() -> None:
    found = served(FRAME)
    for _, target in targets():
        (name, _), *others = METRIC.findall(target["expr"])
        labels = found[name] | {"program" for other, _ in others if other == "flatout_train_info"}
        gone = set(re.findall(r"without \((\w+)\)", target["expr"]))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels - gone


def test_every_state_has_a_colour_and_a_number() -> None:
    states = {panel["title"]: panel for panel in panels() if panel["type"] == "state-timeline"}
    for title in ("State", "Alerts over time"):
        (mapping,) = states[title]["fieldConfig"]["defaults"]["mappings"]
        for number, state in mapping["options"].items():
            assert COLOURS[state["text"]] == state["color"]
            assert f'="{state["text"]}"}} * {number}' in states[title]["targets"][0]["expr"]
    (mapping,) = states["Alerts over time"]["fieldConfig"]["defaults"]["mappings"]
    assert {state["text"] for state in mapping["options"].values()} == set(Severity)


@contextmanager
def real_prometheus(folder: Path, served_on: int) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        "- job_name: flatout\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{served_on}']}}]\n"
    )
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


def asked(api: str, path: str, **parameters: str) -> Any:
    """Its answer; an expression that it does not understand is an error."""
    address = f"{api}/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        document = json.load(answer)
    assert document["status"] == "success"
    return document["data"]


def answers(api: str, query: str) -> list[Json]:
    return list(asked(api, "query", query=query)["result"])


def await_scrape(api: str, query: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if answers(api, query):
                return
        except urllib.error.HTTPError as error:
            if error.code != 503:  # it is just starting
                raise
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here")
def test_prometheus_answers_every_query(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    about_machine = replace(FRAME.alerts[0], code="DISK001", job=None, severity=Severity.WARNING)
    second = replace(FRAME.jobs[0], id="8-1", program='other.py --name "x"', state="stalled")
    frame = replace(FRAME, alerts=(*FRAME.alerts, about_machine), jobs=(*FRAME.jobs, second))
    with prometheus.serving(str(port)) as exposition, real_prometheus(tmp_path, port) as api:
        exposition.tell(frame)
        await_scrape(api, "flatout_train_info")
        for query in queries():
            for chosen in ({}, {"host": "(node1|node2)", "job": "(7-1|9-1)"}):
                assert answers(api, filled(query, **chosen)), query
        (_, metric, label, _) = re.split(r"[(,)] ?", variables()["host"]["query"]["query"])
        assert asked(api, f"label/{label}/values", **{"match[]": metric}) == ["node1"]
        assert job_options(answers(api, filled(list(queries())[-1]))) == {
            "7-1": "train.py --epochs 10",
            "8-1": "other.py --name \\",
        }
        by_title = {panel["title"]: target["expr"] for panel, target in targets()}
        states = answers(api, filled(by_title["State"]))
        assert {s["metric"]["program"]: float(s["value"][1]) for s in states} == {
            "train.py --epochs 10": 2,
            'other.py --name "x"': 4,
        }
        (count,) = answers(api, filled(by_title["Alerts that fire"]))
        assert float(count["value"][1]) == 2
        progress = answers(api, filled(by_title["Progress"], job="7-1"))
        assert [float(sample["value"][1]) for sample in progress] == [0.12]


def job_options(samples: list[Json]) -> dict[str, str]:
    """The list of jobs as Grafana makes it: of each sample its text, taken apart by the regex."""
    regex = variables()["job"]["regex"].strip("/").replace("(?<", "(?P<")
    found = {}
    for sample in samples:
        text = ",".join(f"{name}={json.dumps(value)}" for name, value in sample["metric"].items())
        match = re.search(regex, f"{{{text}}} 1")
        assert match is not None, text
        found[match["value"]] = match["text"]
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here")
def test_where_nothing_fires_the_number_is_0(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    by_title = {panel["title"]: target["expr"] for panel, target in targets()}
    with prometheus.serving(str(port)) as exposition, real_prometheus(tmp_path, port) as api:
        exposition.tell(replace(FRAME, alerts=()))
        await_scrape(api, "flatout_up")
        (count,) = answers(api, filled(by_title["Alerts that fire"]))
        assert float(count["value"][1]) == 0
        assert answers(api, filled(by_title["Alerts over time"])) == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_finds_no_fault_in_what_is_served() -> None:
    exposition, registry = prometheus.Exposition(), CollectorRegistry()
    registry.register(exposition)
    exposition.tell(FRAME)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
