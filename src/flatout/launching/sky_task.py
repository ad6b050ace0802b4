"""The task of a launch by SkyPilot, as a file of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from flatout.launching import contract, yaml_text
from flatout.launching.contract import INSTALL, SAVED_EXIT, TERMINATED_EXIT
from flatout.launching.packing import CODE
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

IDLE_MINUTES = 10
PYTHON = "3.12"
"""Python of the nodes, if the launching environment does not determine it."""
ENVIRONMENT = "~/flatout-env"
REQUIREMENTS = "requirements.txt"
AFTER = {
    "stop": f"its machines stop {IDLE_MINUTES} minutes after the end; their disks stay, and cost",
    "down": f"its machines and disks are gone {IDLE_MINUTES} minutes after the end",
    "keep": "its machines run, and cost, until you take them away: sky down",
}

FILE = """\
{head}
name: {name}
num_nodes: {nodes}
# The code as it travels: without secrets, data and environments.
workdir: {workdir}
resources:
  # What each node has.
{resources}{after}{besides}# {why}
setup: {setup}
# The same on each node; it reads SKYPILOT_NODE_RANK.
run: {run}
"""
AGAIN = """\
  job_recovery:
    # --restarts
    max_restarts_on_errors: {restarts}
    # {saved}: the state is saved; {terminated}: ended by SIGTERM
    recover_on_exit_codes: [{saved}, {terminated}]
"""


def check(request: LaunchRequest) -> None:
    """Check what needs no cloud. Raises UserError."""
    if request.gpus is not None and not request.option("gpu"):
        raise UserError(
            "no GPU model is named, and SkyPilot chooses machines by it",
            "--set gpu=H100; all that there are: sky gpus list --all",
        )
    if request.gpus == "all":
        raise UserError("--gpus all cannot be counted before there are machines", "--gpus 8")
    if request.option("after", "stop") not in AFTER:
        raise UserError("--set after is not one of stop, down, keep", "--set after=down")
    if request.option("spot", "no") not in ("yes", "no"):
        raise UserError("--set spot is neither yes nor no", "--set spot=yes")
    _mount(request)


def managed(request: LaunchRequest) -> bool:
    """Whether SkyPilot replaces machines that are taken away."""
    return bool(request.restarts) or request.option("spot") == "yes"


def afterwards(request: LaunchRequest) -> str:
    """What happens to the machines after the end."""
    if managed(request):
        return "its machines are gone after the end; the jobs controller, a small machine, stays"
    return AFTER[_after(request)]


def text(request: LaunchRequest) -> str:
    """The file for sky."""
    launch = "sky jobs launch" if managed(request) else "sky launch"
    head = (
        f"{request.shown} on {request.nodes} nodes, written by flatout launch sky.\n"
        f"It is yours: edit it, and submit it again: {launch} task.yaml"
    )
    besides = {"file_mounts": _mount(request) or None, "envs": dict(request.variables) or None}
    why, setup = _setup(request)
    # A managed job counts restarts of all nodes.
    line = contract.node_line(replace(request, restarts=0))
    if request.time_s is not None:
        # SIGTERM, so that the state is saved; SIGKILL two minutes later.
        line = f"timeout --kill-after=120 {max(1, round(request.time_s))} {line}"
    lines = [f"exec {line}"] if request.image else [f". {ENVIRONMENT}/bin/activate", f"exec {line}"]
    return FILE.format(
        head=yaml_text.comment(head),
        name=yaml_text.value(request.name),
        nodes=request.nodes,
        workdir=yaml_text.value((request.launch_folder / CODE).as_posix()),
        resources=yaml_text.entries(_resources(request), "  "),
        after=_afterwards(request),
        besides=yaml_text.entries(besides, ""),
        why=why,
        setup=yaml_text.block(setup, "  "),
        run=yaml_text.block("\n".join(lines) + "\n", "  "),
    )


def _resources(request: LaunchRequest) -> dict[str, Any]:
    gpu = request.option("gpu")
    count = request.gpus if isinstance(request.gpus, int) else 1
    given = request.option("disk")
    if given and not given.isdecimal():
        raise UserError(f"--set disk={given} is no number of GB", "--set disk=500")
    return {
        "infra": request.option("infra") or None,
        "region": request.option("region") or None,
        "accelerators": f"{gpu}:{count}" if gpu and request.gpus is not None else None,
        "cpus": request.option("cpus") or None,
        "memory": request.option("memory") or None,
        "disk_size": int(given) if given else None,
        "instance_type": request.option("instance-type") or None,
        "image_id": f"docker:{request.image}" if request.image else None,
        "use_spot": request.option("spot") == "yes",
        "network_tier": "best" if request.nodes > 1 and request.gpus else None,
    }


def _afterwards(request: LaunchRequest) -> str:
    """What follows the end of the job, among the resources."""
    if managed(request):
        codes = {"saved": SAVED_EXIT, "terminated": TERMINATED_EXIT}
        return AGAIN.format(restarts=request.restarts, **codes)
    if _after(request) == "keep":
        return ""
    stop = {"idle_minutes": IDLE_MINUTES, "down": _after(request) == "down"}
    return f"  # {AFTER[_after(request)]}\n" + yaml_text.entries({"autostop": stop}, "  ")


def _after(request: LaunchRequest) -> str:
    """The option `after`, by default `stop`, or `down` for pods, which cannot stop."""
    pods = request.option("infra").partition("/")[0] in ("k8s", "kubernetes")
    return request.option("after", "down" if pods else "stop")


def _mount(request: LaunchRequest) -> dict[str, dict[str, str]]:
    """A bucket and its mount path. Raises UserError."""
    given = request.option("mount")
    if not given:
        return {}
    match = re.fullmatch(r"([a-z0-9]+://[^:]+):(/.+)", given)
    if match is None:
        raise UserError(f"--set mount={given} is no BUCKET:/PATH", "--set mount=s3://my-runs:/runs")
    return {match[2]: {"source": match[1], "mode": "MOUNT"}}


def _setup(request: LaunchRequest) -> tuple[str, str]:
    """Why, and the commands that install what the script needs, on each node before it runs."""
    if request.image:
        why = "The image has all that the script imports."
        return why, f"command -v flatout >/dev/null || {INSTALL}\n"
    travels = request.packed is not None and REQUIREMENTS in request.packed.files
    needed = f"-r {REQUIREMENTS}" if travels else "torch"
    # Python of the launching environment, if flatout supports it.
    match = re.search(r"Python (3\.(\d+))", request.lock.partition("\n")[0])
    python = match[1] if match and int(match[2]) >= 11 else PYTHON
    lines = [
        f"[ -d {ENVIRONMENT} ] || uv venv --seed --python {python} {ENVIRONMENT}",
        f". {ENVIRONMENT}/bin/activate",
        request.option("setup") or f"python -m pip install --quiet {needed}",
        INSTALL,
    ]
    return "What the script imports; SkyPilot's machines have uv.", "\n".join(lines) + "\n"
