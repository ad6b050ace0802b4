"""Ray: a task on each node of a running cluster, by a driver file that is yours.

## The command

    flatout launch ray --nodes 2 --gpus 8 --set address=http://head:8265 train.py

The address is that of the cluster's dashboard; without it, RAY_API_SERVER_ADDRESS, RAY_ADDRESS or
`http://127.0.0.1:8265` is used. `--gpus all` asks for as many as the node with the most has.
Settings, each as `--set NAME=VALUE`:

| setting | meaning |
|---|---|
| `address` | address of the dashboard |
| `cpus` | cores that Ray counts as taken on each node: 1, or one for each GPU |
| `pip` | packages that Ray installs for the job: `flatout,transformers` |

## What is written

`.flatout/launch/<name>-<time>/ray_job.py`, a plain driver: it asks for a placement group with each
node's share on another node (STRICT_SPREAD) and starts `flatout run --nodes auto` there as a
subprocess. Your script is not changed and does not run in a function of Ray. The code folder is
copied to `code/` beside the driver, without secrets, data and environments, and is sent as the
job's working_dir.

flatout must be installed on the nodes, or be named in `pip`. What the script writes below its
folder is lost with Ray's copy of the folder: let it write to a path that all nodes share.

## What is checked first

Whether `ray` is installed here, whether a Ray cluster answers at the address, and how many of its
nodes have the requested resources. Whether each node has flatout is checked once the job has its
nodes, before anything is trained.

## Following and stopping

The job's log has every line of every node, after `[node N]`. Ctrl-C leaves the job running.
`--cancel` stops it on all nodes. The node that fails first is named with its exit code, as is one
whose worker was killed or whose machine is lost. Then the others are ended.

## Restarts

With `--restarts N` all nodes start again after an error or the loss of a node, at most N times.

## What was really run

Ray 2.60 with two raylets on one machine: two nodes' tasks with the same losses as one process, a
named error, counted restarts, a killed worker, a stopped job. No GPU and no cluster of several
machines was used. On Kubernetes `flatout launch kubernetes` needs no Ray.

## References

- https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html
- https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flatout.launching import (
    contract,
    engine_calls,
    packing,
    ray_api,
    tails,
)
from flatout.launching.ray_api import RayApi
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
    title="Ray",
    since="0.2.0",
    needs="ray, and a running cluster",
    travels=True,
    logs_end=True,
    settings=("address", "cpus", "pip"),
)
FILE = "ray_job.py"
DRIVER = "flatout_programs.launching.ray_job"
BEGIN, END = "# ---- what is asked for\n", "# ---- until here\n"
STATES: dict[str, LaunchState] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "STOPPED": "cancelled",
    "SUCCEEDED": "ended",
    "FAILED": "failed",
}
OURS = re.compile(r"\[(node \d+)\] (.*)", re.DOTALL)
TOOL = re.compile(r"\S+ \S+\s(?:INFO|SUCC|WARN|ERR)\S* (?:cli|sdk|dashboard_sdk)\.py:\d+ -- ")
"""Log lines of the ray command itself."""
LOST = "files below the script's own folder are lost: let it write to a path that all nodes share"


def check(request: LaunchRequest) -> CheckedLaunch:
    """Ask the cluster what it has."""
    _cpus(request)
    if request.packed is not None and FILE in request.packed.files:
        raise UserError(
            f"the code folder has a {FILE} of its own, as the driver is called", "rename yours"
        )
    engine_calls.need("ray", "pip install 'ray[default]', in the version of the cluster")
    api = RayApi(ray_api.address(request.option("address")))
    version = api.version()
    options = {**dict(request.options), "address": api.address}
    filled = replace(request, options=tuple(options.items()))
    nodes = api.nodes()
    if request.gpus and nodes and not any(node.get("GPU") for node in nodes):
        raise UserError(
            f"no node of the Ray cluster ({version}) has GPUs", "leave --gpus out, or add nodes"
        )
    return CheckedLaunch(filled, tuple(_warnings(filled, nodes)))


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    """The driver file with the values of this launch."""
    spec = importlib.util.find_spec(DRIVER)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{DRIVER} is not installed beside flatout")
    text = Path(spec.origin).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    template, _, after = rest.partition(END)
    # The driver counts restarts of all nodes and knows which Python Ray runs.
    command = contract.node_command(replace(request, restarts=0, python=""))
    time_s = None if request.time_s is None else round(request.time_s)
    settings = {
        "NODES": repr(request.nodes),
        "GPUS": repr(request.gpus or 0),
        "CPUS": repr(_cpus(request)),
        "COMMAND": repr(command),
        "PYTHON": repr(request.python),
        "VARIABLES": repr(dict(request.variables)),
        "RESTARTS": repr(request.restarts),
        "TIME_S": repr(time_s),
    }
    for name, value in settings.items():
        template = re.sub(rf"(?m)^({name}(?:: .+?)?) = .*$", _setting(value), template)
    return (LaunchFile(FILE, before + BEGIN + template + END + after),)


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Send code and driver as one folder."""
    assert request.packed is not None
    code = packing.stage(request.packed, folder)
    shutil.copyfile(folder / FILE, code / FILE)
    address, name = ray_api.address(request.option("address")), folder.name
    command = ["ray", "job", "submit", "--address", address, "--submission-id", name, "--no-wait"]
    command += ["--working-dir", str(code)]
    if request.option("pip"):
        packages = [word.strip() for word in request.option("pip").split(",") if word.strip()]
        command += ["--runtime-env-json", json.dumps({"pip": packages})]
    # The files to send are chosen already.
    environment = {**os.environ, "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1"}
    answer = engine_calls.ask([*command, "--", "python", FILE], limit_s=300, env=environment)
    if answer.returncode:
        text = answer.stderr + answer.stdout
        if "ray[default]" in text or "No module named 'aiohttp'" in text:
            raise UserError("this ray cannot submit jobs", "pip install 'ray[default]'")
        raise UserError(f"Ray rejects the job: {answer.said}", f"look at {address}")
    extra = {"address": address}
    return SubmittedJob("ray", name, request.name, str(folder), time.time(), request.nodes, extra)


def state(job: SubmittedJob) -> JobState:
    """The state that the cluster reports."""
    answer = _api(job).read(f"/api/jobs/{job.id}")
    if not isinstance(answer, dict):
        return JobState(
            "unknown", f"Ray at {_api(job).address} does not answer, or has forgotten it"
        )
    found = STATES.get(str(answer.get("status")), "unknown")
    code = answer.get("driver_exit_code")
    detail = ""
    if found in ("queued", "failed", "unknown"):
        detail = str(answer.get("message") or "").partition("\n")[0].partition(", last avail")[0]
    return JobState(found, detail, code if isinstance(code, int) else None)


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    """The driver's output: the lines of all nodes."""
    lines = tails.afresh(
        lambda: state(job), lambda now: _whole(job) if now.final else _followed(job), wait_s=1
    )
    for text in lines:
        yield None if text is None else _line(text)


def cancel(job: SubmittedJob) -> None:
    """Stop it on all nodes."""
    _api(job).need("POST", f"/api/jobs/{job.id}/stop")


def costs(request: LaunchRequest) -> LaunchCosts:
    """The resources requested; Ray knows no prices."""
    return contract.costs(request, (LOST,))


def _setting(value: str) -> Callable[[re.Match[str]], str]:
    """A replacement for the line's value; backslashes in a plain text would be interpreted."""
    return lambda line: f"{line[1]} = {value}"


def _cpus(request: LaunchRequest) -> int:
    gpus = request.gpus if isinstance(request.gpus, int) else 0
    text = request.option("cpus", str(max(1, gpus, request.ranks or 1)))
    if not text.isdecimal() or not int(text):
        raise UserError(f"--set cpus={text} is no number of cores", "--set cpus=8")
    return int(text)


def _warnings(request: LaunchRequest, nodes: list[Mapping[str, float]]) -> Iterator[str]:
    """Warnings about too few nodes, to which more may still be added."""
    asked = {"CPU": _cpus(request)}
    if isinstance(request.gpus, int):
        asked["GPU"] = request.gpus
    fit = sum(all(node.get(key, 0) >= asked[key] for key in asked) for node in nodes)
    if nodes and fit < request.nodes:
        words = " and ".join(f"{amount} {key}" for key, amount in asked.items())
        yield contract.waits(fit, words, request.nodes)


def _api(job: SubmittedJob) -> RayApi:
    return RayApi(job.extra.get("address", ray_api.DEFAULT))


def _line(text: str) -> LogLine:
    match = OURS.fullmatch(text)
    return LogLine(match[1], match[2]) if match else LogLine("", text)


def _whole(job: SubmittedJob) -> Iterator[str | None]:
    answer = _api(job).read(f"/api/jobs/{job.id}/logs")
    text = answer.get("logs") if isinstance(answer, dict) else None
    yield from (text or "").splitlines()


def _followed(job: SubmittedJob) -> Iterator[str | None]:
    """The log while it is written, or what there is of it if ray is no longer installed here."""
    if shutil.which("ray") is None:
        yield from _whole(job)
        return
    address = _api(job).address
    command = ["ray", "job", "logs", "--follow", "--address", address, job.id]
    for text in engine_calls.lines_of(command):
        if text is None or not TOOL.match(text):
            yield text
