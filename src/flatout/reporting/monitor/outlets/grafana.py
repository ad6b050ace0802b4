"""A dashboard for Grafana of what the Prometheus outlet serves, made from the table of figures.

Version 42 of the schema is the last one of this kind of document; newer Grafanas read it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

from flatout.nouns.alert import Alert
from flatout.nouns.finding import Severity
from flatout.nouns.job_sample import JobSample, JobState
from flatout.reporting.monitor.outlets import figures, promql
from flatout.reporting.monitor.outlets.figures import HOST, JOB, STATE, Figure

Json = dict[str, Any]
SCHEMA_VERSION = 42
COLUMNS = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
FIGURES = {figure.name: figure for figure in figures.FIGURES}
UNITS = {
    "s": "s",
    "By": "bytes",
    "W": "watt",
    "Cel": "celsius",
    "Hz": "hertz",
    "By/s": "binBps",
    "1": "percentunit",
    "{sample}/s": "suffix: samples/s",
}
"""Units (UCUM) in Grafana's words; what is counted in braces is a number alone."""
COLOURS = {
    "starting": "blue",
    "training": "green",
    "tuning": "purple",
    "stalled": "red",
    "ended": "text",
    "foreign": "super-light-green",
    Severity.UNCHECKED: "text",
    Severity.NOTE: "blue",
    Severity.WARNING: "orange",
    Severity.ERROR: "red",
}


@dataclass(frozen=True)
class DashboardPanel:
    """One panel: curves, or what it says instead."""

    title: str
    names: tuple[str, ...]
    """Figures; where there are several, a curve is named by what follows the colon."""
    limits: tuple[str, ...] = ()
    """Figures that are drawn dashed."""
    width: int = 8
    kind: Literal["timeseries", "states", "table", "count", "progress"] = "timeseries"


PANELS: dict[str, tuple[DashboardPanel, ...]] = {
    "Alerts": (
        DashboardPanel("Alerts that fire", ("flatout.alert",), width=4, kind="count"),
        DashboardPanel("Alerts over time", ("flatout.alert",), width=10, kind="states"),
        DashboardPanel("Alerts now", ("flatout.alert",), width=10, kind="table"),
    ),
    "Jobs": (
        DashboardPanel("State", ("flatout.train.state",), width=12, kind="states"),
        DashboardPanel(
            "Progress",
            ("flatout.train.step.count",),
            ("flatout.train.step.limit",),
            width=8,
            kind="progress",
        ),
        DashboardPanel("Time left", ("flatout.train.remaining",), width=4, kind="count"),
        DashboardPanel("Loss", ("flatout.train.loss",)),
        DashboardPanel("Step time", ("flatout.train.step.duration",)),
        DashboardPanel("Samples per second", ("flatout.train.samples",)),
        DashboardPanel("Waiting for data", ("flatout.train.wait",)),
        DashboardPanel("Step time of each rank", ("flatout.train.rank.step.duration",)),
        DashboardPanel("Waiting of each rank", ("flatout.train.rank.wait",)),
        DashboardPanel("Steps of each rank", ("flatout.train.rank.step.count",)),
        DashboardPanel(
            "Memory", ("flatout.train.gpu.memory.usage:GPU", "flatout.train.memory.usage:host")
        ),
        DashboardPanel("Cores", ("flatout.train.cpu.usage",)),
    ),
    "GPUs": (
        DashboardPanel("Utilisation", ("hw.gpu.utilization",)),
        DashboardPanel(
            "Units at work", ("flatout.gpu.sm.active:SM", "flatout.gpu.tensor.active:tensor cores")
        ),
        DashboardPanel("Memory of GPUs", ("hw.gpu.memory.usage",), ("hw.gpu.memory.limit",)),
        DashboardPanel("Power", ("hw.power",), ("flatout.gpu.power.limit",)),
        DashboardPanel("Temperature", ("hw.temperature",)),
        DashboardPanel("Clocks", ("flatout.gpu.clock",), ("flatout.gpu.clock.limit",)),
        DashboardPanel("What holds the clocks down", ("flatout.gpu.throttle",), kind="states"),
        DashboardPanel("PCIe", ("flatout.gpu.pcie.rate",)),
        DashboardPanel("Fans", ("hw.fan.speed_ratio",)),
        # A counter's first value is news here: an increase would not show it.
        DashboardPanel("Errors", ("hw.errors", "hw.status:waits for a reset"), width=24),
    ),
    "Machine": (
        DashboardPanel(
            "Cores at work",
            ("flatout.host.cpu.usage", "system.cpu.load_average.1m:load"),
            ("flatout.host.cpu.limit",),
        ),
        DashboardPanel(
            "Memory of the machine",
            ("system.memory.usage", "system.paging.usage:swap"),
            ("system.memory.limit",),
        ),
        DashboardPanel(
            "Room in file systems", ("system.filesystem.usage",), ("system.filesystem.limit",)
        ),
        DashboardPanel("Disks", ("flatout.host.disk.rate",)),
        DashboardPanel("Network", ("flatout.host.network.rate",)),
        DashboardPanel(
            "Cores taken away",
            ("flatout.host.cpu.steal:hypervisor", "flatout.host.cpu.throttled:quota"),
        ),
        DashboardPanel("Read back from swap", ("flatout.host.paging.rate",)),
    ),
}


def dashboard() -> Json:
    """The dashboard as Grafana imports it; it asks for a data source, hosts and jobs at its top."""
    return {
        "uid": "flatout",
        "title": "flatout",
        "description": "Training jobs, GPUs and machines, as `flatout monitor --prometheus` tells.",
        "tags": ["flatout", "gpu", "pytorch"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "links": [],
        "templating": {"list": list(_variables())},
        "annotations": {"list": [_annotation()]},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[Json]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "current": {},
        "regex": "",
    }
    host = promql.label(HOST)
    # Known in each frame, and no other tool's name.
    limit = FIGURES["flatout.host.cpu.limit"].prometheus
    yield _query_variable("host", "Host", 1, f"label_values({limit}, {host})")
    info = FIGURES["flatout.train.info"].prometheus
    yield _query_variable(
        "job",
        "Job",
        3,
        f'query_result(last_over_time({info}{{{host}=~"$host"}}[$__range]))',
        # An id tells nobody which job it is.
        f'/{promql.label(JOB)}="(?<value>[^"]+)".*program="(?<text>[^"]+)"/',
    )


def _query_variable(name: str, label: str, kind: int, query: str, regex: str = "") -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {
            "qryType": kind,
            "query": query,
            "refId": "PrometheusVariableQueryEditor-VariableQuery",
        },
        "regex": regex,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "options": [],
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _annotation() -> Json:
    figure = FIGURES["flatout.alert"]
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": promql.selected(figure),
        "titleFormat": "{{code}}",
        "textFormat": f"{{{{{promql.label(HOST)}}}}} {{{{subject}}}}",
        "tagKeys": "severity",
        "step": "10s",
    }


def _panels() -> Iterator[Json]:
    numbers, top = count(1), 0
    for title, panels in PANELS.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        row = {"type": "row", "title": title, "collapsed": False, "panels": []}
        yield {"id": next(numbers), **row, "gridPos": place}
        top, left = top + 1, 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                top, left = top + HEIGHT, 0
            place = {"x": left, "y": top, "w": panel.width, "h": HEIGHT}
            yield {"id": next(numbers), **_panel(panel), "gridPos": place}
            left += panel.width
        top += HEIGHT


def _panel(panel: DashboardPanel) -> Json:
    drawn = [FIGURES[name.partition(":")[0]] for name in panel.names]
    common = {
        "title": panel.title,
        "description": " ".join(figure.help for figure in drawn),
        "datasource": SOURCE,
    }
    form = {"timeseries": _curves, "states": _states, "table": _table, "count": _number}
    return common | (form.get(panel.kind, _progress)(panel, drawn))


def _curves(panel: DashboardPanel, drawn: list[Figure]) -> Json:
    curves = [
        (FIGURES[name], word) for name, _, word in (each.partition(":") for each in panel.names)
    ]
    curves += [(FIGURES[name], "limit") for name in panel.limits]
    targets = [
        _target(promql.named(f), promql.legend(f, word), at) for at, (f, word) in enumerate(curves)
    ]
    dashed = [
        {
            "matcher": {"id": "byFrameRefID", "options": target["refId"]},
            "properties": [
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
                {"id": "custom.fillOpacity", "value": 0},
            ],
        }
        for target in targets[len(panel.names) :]
    ]
    custom = {"lineWidth": 1, "fillOpacity": 0, "showPoints": "auto", "spanNulls": False}
    defaults: Json = {"unit": UNITS.get(drawn[0].unit, "short"), "custom": custom}
    if drawn[0].name != f"flatout.train.{figures.LOSS}":
        defaults["min"] = 0
    return {
        "type": "timeseries",
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": dashed},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _states(panel: DashboardPanel, drawn: list[Figure]) -> Json:
    """A row for each job, alert or reason; coloured by its state, where it has several."""
    (figure,) = drawn
    states = {JobSample: (STATE, get_args(JobState)), Alert: ("severity", tuple(Severity)[::-1])}
    if figure.noun in states:
        label, words = states[figure.noun]
        query, legend = (
            promql.coded(figure, label, words),
            promql.legend(figure, hidden=(label, STATE)),
        )
    else:
        words, query, legend = ("yes",), promql.named(figure), promql.legend(figure)
    colours = {
        str(number): {"text": str(word), "color": COLOURS.get(word, "orange"), "index": number}
        for number, word in enumerate(words, 1)
    }
    return {
        "type": "state-timeline",
        "targets": [_target(query, legend)],
        "fieldConfig": {
            "defaults": {
                "mappings": [{"type": "value", "options": colours}],
                "noValue": "nothing",
                "custom": {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False},
            },
            "overrides": [],
        },
        "options": {
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "left",
            "rowHeight": 0.8,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }


def _table(panel: DashboardPanel, drawn: list[Figure]) -> Json:
    (figure,) = drawn
    hidden = ("Time", "Value", "__name__", "instance", "job", STATE)
    shown = ("severity", "code", promql.label(HOST), promql.label(JOB), "subject")
    order = {
        "id": "organize",
        "options": {
            "excludeByName": dict.fromkeys(hidden, True),
            "indexByName": {name: index for index, name in enumerate(shown)},
            "renameByName": {promql.label(HOST): "host", promql.label(JOB): "of job"},
        },
    }
    return {
        "type": "table",
        "targets": [_target(promql.selected(figure), "", instant=True) | {"format": "table"}],
        "transformations": [order],
        "fieldConfig": {"defaults": {"noValue": "nothing fires"}, "overrides": []},
        "options": {"showHeader": True, "cellHeight": "sm"},
    }


def _number(panel: DashboardPanel, drawn: list[Figure]) -> Json:
    (figure,) = drawn
    query, legend = promql.named(figure), promql.legend(figure)
    steps: list[Json] = [{"color": "text", "value": None}]
    if figure.noun is Alert:
        query, legend = f"count({promql.selected(figure)}) or vector(0)", ""
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    defaults = {
        "unit": UNITS.get(figure.unit, "none"),
        "noValue": "not known",
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return {
        "type": "stat",
        "targets": [_target(query, legend, instant=True)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": _last(), "colorMode": "value", "graphMode": "none"},
    }


def _progress(panel: DashboardPanel, drawn: list[Figure]) -> Json:
    (taken,), (of,) = drawn, (FIGURES[name] for name in panel.limits)
    on = f"on ({promql.label(HOST)}, {promql.label(JOB)})"
    # Two monitors may tell of the same job.
    most = f"max by ({promql.label(HOST)}, {promql.label(JOB)}) ({promql.selected(of)})"
    defaults = {"unit": "percentunit", "min": 0, "max": 1, "noValue": "not known"}
    return {
        "type": "bargauge",
        "targets": [
            _target(
                f"{promql.named(taken)} / {on} group_left () {most}",
                promql.legend(taken),
                instant=True,
            )
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": _last()},
    }


def _last() -> Json:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _target(query: str, legend: str, at: int = 0, instant: bool = False) -> Json:
    return {
        "refId": chr(ord("A") + at),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query,
        "legendFormat": legend,
        "range": not instant,
        "instant": instant,
    }
