"""The words for a run's history, on the page and in the terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

from flatout.nouns import units
from flatout.nouns.alert import Alert
from flatout.nouns.ranks import Scaling
from flatout.reporting import plain
from flatout.reporting.history.charts import gpu_mean, step_ms
from flatout.reporting.history.series import RunSeries


def headline(series: RunSeries) -> str:
    """How the run ended, in one line."""
    job = series.job
    steps = units.count(job.step, "step") if job.step is not None else "no step"
    lasted = f"{steps} in {units.duration(series.lasted_s)}"
    if job.state != "ended":
        return f"Not ended when last seen: {lasted}"
    if job.exit_code is None:
        return f"Ended without an exit code: {lasted}"
    if job.exit_code:
        return f"Failed with exit code {job.exit_code}: {lasted}"
    return f"Ended well: {lasted}"


def facts(series: RunSeries) -> list[tuple[str, str]]:
    """(name, value) for the run's figures."""
    job = series.job
    memory = series.values(lambda moment: moment.job.memory_bytes)
    device = series.values(lambda moment: moment.job.gpu_memory_bytes)
    rows = [
        ("Program", job.program),
        ("Machine", job.hostname),
        ("Folder", job.folder or units.UNKNOWN),
        ("Ranks", str(len(job.ranks)) if job.ranks else units.UNKNOWN),
        ("Boosts", ", ".join(job.boosts) or "none"),
        ("Time per step", units.milliseconds(series.usual(step_ms))),
        ("Throughput", units.rate(series.usual(lambda moment: moment.job.samples_per_s))),
        ("Waiting for data", units.share(series.usual(lambda moment: moment.job.wait_share))),
        ("Last loss", f"{job.loss:.4g}" if job.loss is not None else units.UNKNOWN),
        ("Host memory, at most", units.size(max(memory, default=None))),
        ("GPU memory, at most", units.size(max(device, default=None))),
        ("GPU utilization", units.share(series.usual(gpu_mean("utilization")))),
    ]
    return [(name, plain.one_line(value)) for name, value in rows]


def alert_line(alert: Alert) -> str:
    """One alert in one line."""
    subject = f" ({alert.subject})" if alert.subject else ""
    return plain.one_line(f"{alert.code}{subject}: {alert.title}")


def document(series: RunSeries, page: str, trial: Scaling | None = None) -> dict[str, Any]:
    """The history as JSON: `flatout.report/1`. trial: the trial of ranks before the run."""
    job = series.job
    return {
        "schema": "flatout.report/1",
        "program": job.program,
        "hostname": job.hostname,
        "state": job.state,
        "exit_code": job.exit_code,
        "began_s": job.began_s,
        "lasted_s": series.lasted_s,
        "steps": job.step,
        "step_ms": series.usual(step_ms),
        "samples_per_s": series.usual(lambda moment: moment.job.samples_per_s),
        "wait_share": series.usual(lambda moment: moment.job.wait_share),
        "loss": series.losses[-1][1] if series.losses else None,
        "alerts": [
            {"code": alert.code, "subject": alert.subject, "title": alert.title}
            | {"evidence": alert.evidence, "since_s": alert.since_s, "state": alert.state}
            for alert in series.alerts
        ],
        "ranks_trial": dataclasses.asdict(trial) if trial is not None else None,
        "page": page,
    }
