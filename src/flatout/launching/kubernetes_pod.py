"""A pod of a launch: its container, script, volumes and resources."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace

from flatout.launching import contract
from flatout.launching.yaml_text import Entry, Noted
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

CONTAINER = "node"
"""The name of container and replicated job in Kubeflow Trainer's runtimes."""
PORT = 29500
GRACE_S = 120
FINE = (0, contract.SAVED_EXIT, contract.TERMINATED_EXIT, contract.LOST_EXIT)
"""Exit codes that are not an error of the program."""
WAIT = "1h"
"""Wait for other nodes: replacing a lost one takes minutes, and its machine may have to be started
first."""
ARCHIVE = "code.tar.gz"
CODE, WORK, STATE = "/flatout/code", "/flatout/work", "/flatout/state"
GPU = "nvidia.com/gpu"
LABEL = "flatout/launch"


def name(request: LaunchRequest) -> str:
    """Name of the objects: the job's name and a part that distinguishes launches."""
    digest = hashlib.sha256(request.launch_folder.name.encode()).hexdigest()[:5]
    return f"{request.name}-{digest}"


def code_map(request: LaunchRequest) -> str:
    """The ConfigMap that holds the code."""
    return f"{name(request)}-code"


def carries_code(request: LaunchRequest) -> bool:
    """Whether the code is sent separately, not in the image."""
    return request.option("code") != "image"


def labels(request: LaunchRequest) -> dict[str, Entry]:
    """Labels of every object of the launch; one names the Kueue queue."""
    return {
        "app.kubernetes.io/managed-by": "flatout",
        LABEL: name(request),
        "kueue.x-k8s.io/queue-name": request.queue or None,
    }


def numbered(request: LaunchRequest, option: str, default: int) -> int:
    """The option as a number. Raises UserError."""
    text = request.option(option, str(default))
    if not text.isdecimal():
        raise UserError(f"--set {option}={text} is no number", f"--set {option}={default}")
    return int(text)


def script(request: LaunchRequest, restarted_in_place: bool) -> str:
    """What the container runs. restarted_in_place: its runtime restarts it by itself."""
    # Kubernetes itself counts the job's restarts.
    line = contract.node_line(replace(request, restarts=0), wait=WAIT)
    lines = ["set -e"]
    if carries_code(request):
        lines += [f"mkdir -p {WORK}", f"tar -xzf {CODE}/{ARCHIVE} -C {WORK}", f"cd {WORK}"]
    elif request.option("workdir"):
        lines += [f"cd {shlex.quote(request.option('workdir'))}"]
    lines += [
        "# an image without flatout gets it now: put it into the image to start sooner, or where",
        "# no index that this node asks has it",
        'export PATH="$PATH:$HOME/.local/bin"',
        "if ! command -v flatout >/dev/null; then",
        f"  {contract.INSTALL}",
        "fi",
    ]
    lines += _again(request, line) if restarted_in_place else [f"exec {line}"]
    # $(NAME) would be replaced by Kubernetes.
    return "\n".join(lines).replace("$(", "$$(") + "\n"


def _again(request: LaunchRequest, line: str) -> list[str]:
    """Lines that stop restarts after the last error: the runtime restarts after any exit code."""
    return [
        "# This runtime starts the container again, whatever it ended with; the script does so",
        f"# only after a preemption, and after {request.restarts} errors.",
        f"failures={STATE}/failures; touch $failures",
        f'if [ "$(wc -l <$failures)" -gt {request.restarts} ]; then',
        '  echo "flatout: it has failed before and is not started again" >&2',
        '  exit "$(tail -n 1 $failures)"',
        "fi",
        "code=0",
        f"{line} & program=$!",
        "trap 'kill -TERM $program' TERM",
        "wait $program || code=$?",
        "while kill -0 $program 2>/dev/null; do code=0; wait $program || code=$?; done",
        f"case $code in {'|'.join(map(str, FINE))}) ;; *) echo $code >>$failures ;; esac",
        "exit $code",
    ]


def variables(request: LaunchRequest, leader: str = "") -> list[Entry]:
    """Variables of the container. leader: its address, if the engine sets no variables itself."""
    told = bool(leader)
    own: list[Entry] = [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    if told:
        own += [
            {"name": "FLATOUT_NODES", "value": str(request.nodes)},
            {"name": "FLATOUT_LEADER", "value": f"{leader}:{PORT}"},
        ]
    uid = "metadata.labels['batch.kubernetes.io/controller-uid']"
    own.append(
        Noted(
            {
                "name": "FLATOUT_JOB" if told else "PET_RDZV_ID",
                "valueFrom": {"fieldRef": {"fieldPath": uid}},
            },
            "the same on all nodes of one start of the job, and on no other",
        )
    )
    # $(NAME) would be replaced by Kubernetes.
    given = ((key, value.replace("$(", "$$(")) for key, value in request.variables)
    return [*own, *({"name": key, "value": value} for key, value in given)]


def resources(request: LaunchRequest) -> dict[str, Entry] | None:
    """The resources that each node must have."""
    gpus = request.gpus
    if gpus == "all":
        raise UserError(
            "--gpus all can be counted only where the cluster is", "name the number: --gpus 8"
        )
    asked: dict[str, Entry] = {}
    for kind in ("cpu", "memory"):
        if request.option(kind):
            asked[kind] = request.option(kind)
    limits: dict[str, Entry] = {}
    if "memory" in asked:
        limits["memory"] = asked["memory"]
    if gpus:
        limits[request.option("gpu-resource", GPU)] = gpus
    found = {"requests": asked or None, "limits": limits or None}
    return {key: value for key, value in found.items() if value} or None


def volumes(request: LaunchRequest, restarted_in_place: bool) -> list[Entry]:
    """Code, shared memory, and the claims that the user names."""
    shared: dict[str, Entry] = {"medium": "Memory", "sizeLimit": request.option("shm") or None}
    found: list[Entry] = [
        Noted(
            {"name": "shared-memory", "emptyDir": shared},
            "loader workers pass batches through /dev/shm, which would have 64 MiB",
        ),
        {"name": "work", "emptyDir": {}} if carries_code(request) else None,
        {"name": "state", "emptyDir": {}} if restarted_in_place else None,
        {"name": "code", "configMap": {"name": code_map(request)}}
        if carries_code(request)
        else None,
    ]
    found += [
        {"name": f"claim-{place}", "persistentVolumeClaim": {"claimName": claim}}
        for place, (claim, _) in enumerate(claims(request))
    ]
    return [volume for volume in found if volume is not None]


def mounts(request: LaunchRequest, restarted_in_place: bool) -> list[Entry]:
    """Where the volumes are mounted."""
    work = carries_code(request)
    found: list[Entry] = [
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "work", "mountPath": WORK} if work else None,
        {"name": "state", "mountPath": STATE} if restarted_in_place else None,
        {"name": "code", "mountPath": CODE, "readOnly": True} if work else None,
    ]
    found += [
        {"name": f"claim-{place}", "mountPath": path}
        for place, (_, path) in enumerate(claims(request))
    ]
    return [mount for mount in found if mount is not None]


def claims(request: LaunchRequest) -> list[tuple[str, str]]:
    """Name and path of each claim: --set claim=data:/data,runs:/runs. Raises UserError."""
    found = []
    for text in filter(None, request.option("claim").split(",")):
        claim, colon, path = text.partition(":")
        if not claim or not colon or not path.startswith("/"):
            raise UserError(f"--set claim={text} is no NAME:/PATH", "--set claim=data:/data")
        found.append((claim, path))
    return found


def pod(request: LaunchRequest) -> dict[str, Entry]:
    """The parts of a pod common to all kinds of jobs, without its container."""
    secret, account = request.option("pull-secret"), request.option("service-account")
    found: dict[str, Entry] = {
        "terminationGracePeriodSeconds": Noted(
            numbered(request, "grace", GRACE_S),
            "between SIGTERM and SIGKILL: to finish a step and save",
        ),
        "serviceAccountName": account or None,
        "imagePullSecrets": [{"name": secret}] if secret else None,
        "nodeSelector": _selector(request) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def container(request: LaunchRequest, leader: str) -> dict[str, Entry]:
    """The container of a job that specifies everything itself."""
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": ["sh", "-c"],
        "args": [script(request, restarted_in_place=False)],
        "env": variables(request, leader),
        "ports": [{"containerPort": PORT}],
        "resources": resources(request),
        "volumeMounts": mounts(request, restarted_in_place=False),
    }


def _selector(request: LaunchRequest) -> Mapping[str, Entry]:
    """The labels in --set node-selector=key=value,key=value."""
    found: dict[str, Entry] = {}
    for text in filter(None, request.option("node-selector").split(",")):
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(
                f"--set node-selector={text} is no KEY=VALUE",
                "--set node-selector=kubernetes.io/arch=amd64",
            )
        found[key] = value
    return found
