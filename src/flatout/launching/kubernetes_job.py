"""The objects of a launch on Kubernetes: an indexed Job, and the Service by which its pods meet."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace

from flatout.launching import contract, yaml_text
from flatout.launching.contract import LOST_EXIT, SAVED_EXIT, TERMINATED_EXIT
from flatout.launching.yaml_text import Entry, Noted
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

RESOURCE = "jobs.batch"
CONTAINER = "node"
PORT = 29500
GRACE_S = 120
KEPT_S = 7 * 24 * 3600
"""Seconds for which a job that has ended is kept with its logs."""
WAIT = "1h"
"""Wait for other nodes: replacing a lost one takes minutes, and its machine may have to be started
first."""
ARCHIVE = "code.tar.gz"
CODE, WORK = "/flatout/code", "/flatout/work"
GPU = "nvidia.com/gpu"
LABEL = "flatout/launch"
JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"

Document = tuple[str, Mapping[str, Entry]]


def text(request: LaunchRequest) -> str:
    """The file for kubectl: all objects except the code, each with the comment above it."""
    head = f"{_head(request)}\n\nBy this the pods find each other."
    objects = (head, _service(request)), ("A pod on each node.", _job(request))
    return yaml_text.documents(objects)


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
    """Labels of every object of the launch."""
    return {"app.kubernetes.io/managed-by": "flatout", LABEL: name(request)}


def _head(request: LaunchRequest) -> str:
    image = request.image or "registry.example.org/training"
    lines = [
        f"{request.shown} on {request.nodes} nodes, written by flatout launch kubernetes.",
        "It is yours: edit it, and submit it again with kubectl.",
        f"The image: flatout env docker; docker build -t {image} .; docker push {image}",
    ]
    if carries_code(request):
        archive = f"--from-file={ARCHIVE}"
        lines.append(f"The code: kubectl create configmap {code_map(request)} {archive}")
    return "\n".join([*lines, "Submit: kubectl create -f job.yaml"])


def _metadata(request: LaunchRequest) -> dict[str, Entry]:
    """queue-name: Kueue then starts the job when its queue has room for all of its pods."""
    return {
        "name": name(request),
        "namespace": request.option("namespace") or None,
        "labels": {**labels(request), "kueue.x-k8s.io/queue-name": request.queue or None},
    }


def _service(request: LaunchRequest) -> dict[str, Entry]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name(request)},
            "ports": [{"name": "meeting", "port": PORT}],
        },
    }


def _job(request: LaunchRequest) -> dict[str, Entry]:
    seconds = None if request.time_s is None else max(1, round(request.time_s))
    spec: dict[str, Entry] = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": Noted("Indexed", "each pod gets its number in JOB_COMPLETION_INDEX"),
        "backoffLimit": Noted(
            request.restarts * request.nodes, "pods that may fail: an error ends all of a start"
        ),
        "activeDeadlineSeconds": seconds,
        "ttlSecondsAfterFinished": Noted(KEPT_S, "kept for a week after its end"),
        "podFailurePolicy": {"rules": _rules(request)},
        "template": {"metadata": {"labels": labels(request)}, "spec": pod(request)},
    }
    metadata = _metadata(request)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _rules(request: LaunchRequest) -> list[Entry]:
    """What follows from the end of a pod."""
    condition: dict[str, Entry] = {"type": "DisruptionTarget", "status": "True"}
    rules: list[Entry] = [
        Noted(
            {"action": "Ignore", "onPodConditions": [condition]},
            "a preempted pod is made anew, and does not count as an error",
        ),
        Noted(
            {"action": "Ignore", "onExitCodes": _ended_with(SAVED_EXIT, TERMINATED_EXIT)},
            f"{SAVED_EXIT}: the state is saved; {TERMINATED_EXIT}: ended by SIGTERM. "
            "Nodes end so when another one is taken away",
        ),
        Noted(
            {"action": "Ignore", "onExitCodes": _ended_with(LOST_EXIT)},
            f"{LOST_EXIT}: it has lost another node, whose own end decides; it waits for all anew",
        ),
    ]
    if not request.restarts:
        codes: dict[str, Entry] = {"operator": "NotIn", "values": [0]}
        other: dict[str, Entry] = {"action": "FailJob", "onExitCodes": codes}
        rules.append(Noted(other, "any other error ends the job"))
    return rules


def _ended_with(*codes: int) -> dict[str, Entry]:
    return {"containerName": CONTAINER, "operator": "In", "values": [*codes]}


def pod(request: LaunchRequest) -> dict[str, Entry]:
    """The pod of each node. Raises UserError for an option that cannot be read."""
    secret = request.option("pull-secret")
    own = name(request)
    container: dict[str, Entry] = {
        "name": CONTAINER,
        "image": request.image,
        "command": ["sh", "-c"],
        "args": [_script(request)],
        "env": _variables(request, f"{own}-0.{own}"),
        "ports": [{"containerPort": PORT}],
        "resources": _resources(request),
        "volumeMounts": _mounts(request),
    }
    return {
        "restartPolicy": "Never",
        "subdomain": own,
        "terminationGracePeriodSeconds": Noted(
            _grace_s(request), "between SIGTERM and SIGKILL: to finish a step and save"
        ),
        "serviceAccountName": request.option("service-account") or None,
        "imagePullSecrets": [{"name": secret}] if secret else None,
        "nodeSelector": _selector(request) or None,
        "containers": [container],
        "volumes": _volumes(request),
    }


def _grace_s(request: LaunchRequest) -> int:
    seconds = request.option("grace", str(GRACE_S))
    if not seconds.isdecimal():
        raise UserError(f"--set grace={seconds} is no number", f"--set grace={GRACE_S}")
    return int(seconds)


def _selector(request: LaunchRequest) -> Mapping[str, Entry]:
    """The labels in --set node-selector=key=value,key=value."""
    found: dict[str, Entry] = {}
    for given in filter(None, request.option("node-selector").split(",")):
        key, equals, value = given.partition("=")
        if not key or not equals:
            raise UserError(
                f"--set node-selector={given} is no KEY=VALUE",
                "--set node-selector=kubernetes.io/arch=amd64",
            )
        found[key] = value
    return found


def _script(request: LaunchRequest) -> str:
    """What the container runs."""
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
        f"exec {line}",
    ]
    return _literal("\n".join(lines)) + "\n"


def _variables(request: LaunchRequest, leader: str) -> list[Entry]:
    """Variables of the container. leader: the address of the first pod."""
    given = ((key, _literal(value)) for key, value in request.variables)
    return [
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "FLATOUT_NODES", "value": str(request.nodes)},
        {"name": "FLATOUT_LEADER", "value": f"{leader}:{PORT}"},
        Noted(
            {"name": "FLATOUT_JOB", "valueFrom": {"fieldRef": {"fieldPath": JOB_UID}}},
            "the same on all nodes of one start of the job, and on no other",
        ),
        *({"name": key, "value": value} for key, value in given),
    ]


def _literal(text: str) -> str:
    """The text such that Kubernetes does not replace $(NAME) in it."""
    return text.replace("$(", "$$(")


def _resources(request: LaunchRequest) -> dict[str, Entry] | None:
    """The resources that each node must have."""
    gpus = request.gpus
    if gpus == "all":
        raise UserError(
            "--gpus all can be counted only where the cluster is", "name the number: --gpus 8"
        )
    asked: dict[str, Entry] = {
        kind: request.option(kind) for kind in ("cpu", "memory") if request.option(kind)
    }
    limits: dict[str, Entry] = {"memory": asked["memory"]} if "memory" in asked else {}
    if gpus:
        limits[request.option("gpu-resource", GPU)] = gpus
    found = {"requests": asked or None, "limits": limits or None}
    return {key: value for key, value in found.items() if value} or None


def _volumes(request: LaunchRequest) -> list[Entry]:
    """Shared memory, code, and the claims that the user names."""
    shared: dict[str, Entry] = {"medium": "Memory", "sizeLimit": request.option("shm") or None}
    found: list[Entry] = [
        Noted(
            {"name": "shared-memory", "emptyDir": shared},
            "loader workers pass batches through /dev/shm, which would have 64 MiB",
        )
    ]
    if carries_code(request):
        found.append({"name": "work", "emptyDir": {}})
        found.append({"name": "code", "configMap": {"name": code_map(request)}})
    for place, (claim, _) in enumerate(claims(request)):
        held: dict[str, Entry] = {"claimName": claim}
        found.append({"name": f"claim-{place}", "persistentVolumeClaim": held})
    return found


def _mounts(request: LaunchRequest) -> list[Entry]:
    """Where the volumes are mounted."""
    found: list[Entry] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    if carries_code(request):
        found.append({"name": "work", "mountPath": WORK})
        found.append({"name": "code", "mountPath": CODE, "readOnly": True})
    for place, (_, path) in enumerate(claims(request)):
        found.append({"name": f"claim-{place}", "mountPath": path})
    return found


def claims(request: LaunchRequest) -> list[tuple[str, str]]:
    """Name and path of each claim: --set claim=data:/data,runs:/runs. Raises UserError."""
    found = []
    for given in filter(None, request.option("claim").split(",")):
        claim, colon, path = given.partition(":")
        if not claim or not colon or not path.startswith("/"):
            raise UserError(f"--set claim={given} is no NAME:/PATH", "--set claim=data:/data")
        found.append((claim, path))
    return found
