"""SkyPilot: machines of a cloud, a Kubernetes cluster or your own, made for the job.

## The command

    flatout launch sky --nodes 2 --gpus 8 --set gpu=H100 --time 4h train.py

SkyPilot looks for the cheapest place with these GPUs among the clouds that `sky check` knows.
Settings, each as `--set NAME=VALUE`:

| setting | meaning |
|---|---|
| `gpu` | model of the GPUs, as `sky gpus list` names it: H100, A100-80GB ... |
| `infra` | where: `aws`, `gcp/us-central1`, `k8s/my-context` ... |
| `spot` | `yes`: machines that may be taken away; they are replaced, and the job continues |
| `after` | what happens to the machines ten minutes after the end: `stop`, `down` or `keep` |
| `setup` | a line that installs what the script imports, instead of flatout's |
| `cpus`, `memory`, `disk`, `instance-type`, `region` | those of each node |
| `mount` | a persistent bucket: `s3://my-runs:/runs` |

## What is written

`.flatout/launch/<name>-<time>/task.yaml`, and the code folder beside it in `code/`, without
secrets, data and environments. `setup` makes an environment with flatout and the folder's
requirements.txt, or torch alone if there is none. With `--image` it only installs flatout, if that
is missing. `run` is `flatout run --nodes auto`, the same on each node.

Variables of `--env` are in the file, which only you can read; SkyPilot's own `--secret` keeps them
out of its records.

## What is checked first

Whether `sky` is installed, `sky check` finds a cloud and a GPU model is named. Then SkyPilot itself
is called with `--dryrun`, which reads the file, chooses a place and says what it costs; nothing is
started.

## Following and stopping

The logs of all nodes are shown as one, with the node before each line. Ctrl-C leaves the job
running. `--cancel` ends it; machines stop or are deleted as `after` says. They cost money until
then: `sky status` shows them.

## Restarts

With `--restarts N` or `spot=yes` it is a managed job (`sky jobs launch`): machines that are taken
away are replaced and all nodes start again, also if the program ended with its state saved. Errors
of the program restart it at most N times. Anything that must survive has to be in a `mount`.

## What was really run

SkyPilot 0.14 has read the files (`sky.Task.from_yaml` and its schema) and answered the checks on a
machine without a cloud. No cloud has run one yet.

## References

- https://docs.skypilot.co/en/latest/reference/yaml-spec.html
- https://docs.skypilot.co/en/latest/running-jobs/distributed-jobs.html
- https://docs.skypilot.co/en/latest/examples/managed-jobs.html
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.launching import contract, engine_calls, packing, sky_task, tails
from flatout.launching.engine_calls import ToolAnswer
from flatout.nouns import escapes
from flatout.nouns.errors import UserError
from flatout.nouns.launched import (
    CheckedLaunch,
    JobState,
    LaunchCosts,
    LaunchEngine,
    LaunchFile,
    LaunchRequest,
    LaunchState,
    LogLine,
    SubmittedJob,
)

ENGINE = LaunchEngine(
    title="SkyPilot",
    since="0.2.0",
    needs="sky, and a cloud",
    travels=True,
    logs_end=True,
    understands=("image",),
    settings=(
        *("gpu", "infra", "spot", "after", "setup", "cpus", "memory", "disk", "instance-type"),
        *("region", "mount"),
    ),
)
FILE = "task.yaml"
CONTROLLER_S = 1800.0
"""Long, because the first managed job waits for the machine that manages such jobs."""
STATES: dict[str, LaunchState] = {
    "INIT": "queued",
    "PENDING": "queued",
    "SUBMITTED": "queued",
    "SETTING_UP": "queued",
    "STARTING": "queued",
    "RUNNING": "running",
    "WINDING_DOWN": "running",
    "RECOVERING": "queued",
    "CANCELLING": "running",
    "SUCCEEDED": "ended",
    "CANCELLED": "cancelled",
}
"""All other states begin with FAILED."""
DETAILS = {
    "SETTING_UP": "its environment is installed",
    "STARTING": "its machines are started",
    "RECOVERING": "machines were preempted and are being replaced",
}
WORKER = re.compile(
    r"\((?:head|worker\d*), rank=(\d+), pid=\d+(?:, ip=[\w.:]+)?\) ?(.*)", re.DOTALL
)
ALONE = re.compile(r"\([^()]*, pid=\d+\) ?(.*)", re.DOTALL)

INSTALL = "pip install 'skypilot[aws]' (or gcp, azure, kubernetes ...), then: sky check"
LIMIT_S = 120.0
"""Long, because its first command starts its API server on this machine."""


def check(request: LaunchRequest) -> CheckedLaunch:
    """Ask SkyPilot what it would do."""
    engine_calls.need("sky", INSTALL)
    sky_task.check(request)
    if not known_clouds():
        raise UserError(
            "sky check finds no cloud that it may use", "log in to one, then: sky check"
        )
    # What SkyPilot would choose, with its prices, in its own words.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / packing.CODE).mkdir()
        task = folder / FILE
        task.write_text(sky_task.text(replace(request, launch_folder=folder)), encoding="utf-8")
        answer = ask_sky("launch", "--dryrun", "--yes", "--cluster", "dry", str(task))
    if answer.returncode:
        raise UserError(f"SkyPilot rejects the job: {complaint(answer)}", "try: sky check")
    table = answer.stdout.partition("Considered resources")[2].partition("\n\n")[0]
    rows = [line.rstrip() for line in table.splitlines()[1:] if re.search(r"\w", line)]
    return CheckedLaunch(request, notes=tuple(rows))


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    """The task."""
    return (LaunchFile(FILE, sky_task.text(request)),)


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Submit it; machines are made while it is followed."""
    assert request.packed is not None
    code = packing.stage(request.packed, folder)
    # The files are chosen already. Without this one, SkyPilot would also omit what git ignores.
    (code / ".skyignore").touch()
    name, task = folder.name.lower(), str(folder / FILE)
    managed = sky_task.managed(request)
    words = ["jobs", "launch", "--name", name] if managed else ["launch", "--cluster", name]
    words += ["--detach-run", "--yes", "--async", task]
    answer = ask_sky(*words)
    if answer.returncode:
        raise UserError(f"SkyPilot rejects the job: {complaint(answer)}", "sky status")
    extra = {"managed": "yes" if managed else ""}
    return SubmittedJob("sky", name, request.name, str(folder), time.time(), request.nodes, extra)


def state(job: SubmittedJob) -> JobState:
    """The state in the cluster's queue; before that, the state of the cluster."""
    if job.extra.get("managed"):
        rows = sky_document("jobs", "queue", "--all-users")
        own = [row for row in rows or [] if isinstance(row, dict) and row.get("job_name") == job.id]
        if own:
            return _of(own[-1].get("status"), own[-1].get("failure_reason") or "")
        return _starting(job, rows is not None)
    rows = sky_document("queue", job.id)
    listed = rows.get(job.id) if isinstance(rows, dict) else None
    if listed:
        newest = max(listed, key=lambda row: row.get("job_id", 0))
        return _of(newest.get("status"), "")
    return _starting(job, rows is not None)


def _of(status: object, why: str) -> JobState:
    name = str(status)
    found: LaunchState = STATES.get(name, "failed" if name.startswith("FAILED") else "unknown")
    detail = DETAILS.get(name, "") or " ".join(str(why).split())
    if found == "failed" and name != "FAILED":
        detail = f"{name}: {detail}".removesuffix(": ")
    return JobState(found, detail, 0 if found == "ended" else None)


def _starting(job: SubmittedJob, answered: bool) -> JobState:
    """The state while there is no job: the cluster is starting or was not available."""
    if job.extra.get("managed"):
        if time.time() - job.submitted_at < CONTROLLER_S:
            return JobState("queued", "SkyPilot starts its jobs controller")
        return JobState("unknown", "SkyPilot knows no such job (any more): sky jobs queue")
    rows = sky_document("status", job.id)
    cluster = next((row for row in rows or [] if row.get("name") == job.id), None)
    if cluster is not None:
        why = cluster.get("init_status_reason") or cluster.get("status") or ""
        return JobState("queued", f"its machines: {why}")
    requests = sky_document("api", "status", "--all-status", "--cluster", job.id)
    for row in requests or []:
        if isinstance(row, dict) and row.get("cluster_name") == job.id:
            status = str(row.get("status", "")).upper()
            if status == "FAILED":
                return JobState(
                    "failed",
                    f"its machines could not be obtained: sky api logs {row.get('request_id', '')}",
                )
            if status == "CANCELLED":
                return JobState("cancelled")
            return JobState("queued", "SkyPilot looks for machines")
    if not answered and rows is None:
        return JobState("unknown", "SkyPilot does not answer")
    return JobState("unknown", "SkyPilot knows no such job or cluster (any more)")


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    """The logs of all nodes, once there is a job."""
    for text in tails.afresh(lambda: state(job), lambda now: _printed(job, now), wait_s=3):
        yield None if text is None else _line(escapes.removed(text))


def _printed(job: SubmittedJob, now: JobState) -> Iterator[str | None]:
    """The job's log as sky prints it, from the beginning; nothing before there is a job."""
    if now.state in ("queued", "unknown"):
        yield from tails.pause(2)
        return
    words = ["jobs", "logs", "--name", job.id] if job.extra.get("managed") else ["logs", job.id]
    words += ["--no-follow"] if now.final else []
    yield from engine_calls.lines_of(["sky", *words, "--tail", "0"])


def cancel(job: SubmittedJob) -> None:
    """End the job; its machines stop or are deleted as the file says."""
    managed = bool(job.extra.get("managed"))
    words = ["jobs", "cancel", "--name", job.id] if managed else ["cancel", job.id, "--all"]
    answer = ask_sky(*words, "--yes")
    if answer.returncode:
        raise UserError(
            f"SkyPilot did not cancel the job: {complaint(answer)}",
            "see sky status; sky down removes a cluster and all that runs on it",
        )


def costs(request: LaunchRequest) -> LaunchCosts:
    """The resources requested; `sky gpus list` and `sky launch --dryrun` tell prices."""
    notes = [sky_task.afterwards(request)]
    if not request.option("mount"):
        notes.append(
            "the script's files stay on these machines' disks; to keep them: --set mount=s3://BUCKET:/PATH"
        )
    here = contract.only_here()
    if here is not None and not (request.image or request.option("setup")):
        notes.append(
            f"flatout was installed from {here} here, and no index may have it; name where these"
            " machines get it: --set setup='pip install torch git+https://...'"
        )
    if request.option("gpu"):
        notes.append(f"prices: sky gpus list {request.option('gpu')}")
    return replace(contract.costs(request, tuple(notes)), gpu_model=request.option("gpu"))


def _line(text: str) -> LogLine:
    match = WORKER.fullmatch(text)
    if match:
        return LogLine(f"node {match[1]}", match[2])
    alone = ALONE.fullmatch(text)
    return LogLine("node 0", alone[1]) if alone else LogLine("", text)


def ask_sky(*words: str, limit_s: float = LIMIT_S) -> ToolAnswer:
    """SkyPilot's answer, without colours."""
    answer = engine_calls.ask(["sky", *words], limit_s)
    return ToolAnswer(
        answer.returncode, escapes.removed(answer.stdout), escapes.removed(answer.stderr)
    )


def sky_document(*words: str) -> Any:
    """The JSON that it prints after its other output, or None if there is none."""
    answer = ask_sky(*words, "--output", "json")
    for begin in re.finditer(r"(?m)^\s*[\[{]", answer.stdout):
        try:
            found, _ = json.JSONDecoder().raw_decode(answer.stdout[begin.start() :].lstrip())
        except ValueError:
            continue
        return found
    return None


def known_clouds() -> list[str]:
    """The clouds that it currently knows it may use. Raises UserError if it does not run."""
    found = sky_document("check")
    if not isinstance(found, dict):
        answer = ask_sky("check")
        raise UserError(f"sky check does not end well: {complaint(answer)}", "try: sky check")
    workspaces = [entry for entry in found.values() if isinstance(entry, dict)]
    return sorted({str(cloud) for entry in workspaces for cloud in entry})


def complaint(answer: ToolAnswer) -> str:
    """The line that says why."""
    lines = [line.strip() for line in (answer.stderr + "\n" + answer.stdout).splitlines()]
    marked = [line for line in lines if re.match(r"(sky\.exceptions\.|ValueError|Error)", line)]
    text = (marked or [answer.said])[-1]
    return re.sub(r"^sky\.exceptions\.", "", text)
