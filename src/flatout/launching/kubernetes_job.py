"""The objects of a launch on Kubernetes: an indexed Job, and the Service by which its pods meet."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from typing import Any

from flatout.launching import contract, yaml_text
from flatout.launching.contract import LOST_EXIT, SAVED_EXIT, TERMINATED_EXIT
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

RESOURCE = "jobs.batch"
CONTAINER = "node"
PORT = 29500
GRACE_S = 120
WAIT = "1h"
"""Wait for other nodes: replacing a lost one takes minutes, and its machine may have to be started
first."""
ARCHIVE = "code.tar.gz"
CODE, WORK = "/flatout/code", "/flatout/work"
GPU = "nvidia.com/gpu"
LABEL = "flatout/launch"
FILE = """\
{head}

# By this the pods find each other.
apiVersion: v1
kind: Service
metadata:
{metadata}spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{job-name: {name}}}
  ports: [{{name: meeting, port: {port}}}]
---
# A pod on each node.
apiVersion: batch/v1
kind: Job
metadata:
{metadata}spec:
  parallelism: {nodes}
  completions: {nodes}
  # Each pod gets its number in JOB_COMPLETION_INDEX.
  completionMode: Indexed
  # Pods that may fail: an error ends all of a start.
  backoffLimit: {failures}
{limit}  # Kept for a week after its end.
  ttlSecondsAfterFinished: 604800
  podFailurePolicy:
    rules:
      # A preempted pod is made anew, and does not count as an error.
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      # {saved}: the state is saved; {terminated}: ended by SIGTERM.
      # Nodes end so when another one is taken away.
      - action: Ignore
        onExitCodes: {{containerName: {container}, operator: In, values: [{saved}, {terminated}]}}
      # {lost}: it has lost another node, whose own end decides; it waits for all anew.
      - action: Ignore
        onExitCodes: {{containerName: {container}, operator: In, values: [{lost}]}}
{others}  template:
    metadata: {{labels: {labels}}}
    spec:
      restartPolicy: Never
      subdomain: {name}
      # Between SIGTERM and SIGKILL: to finish a step and save.
      terminationGracePeriodSeconds: {grace_s}
{pod}      containers:
        - name: {container}
          image: {image}
          command: [sh, -c]
          args:
            - {script}
          env:
            - {{name: PYTHONUNBUFFERED, value: "1"}}
            - {{name: FLATOUT_NODES, value: "{nodes}"}}
            - {{name: FLATOUT_LEADER, value: {leader}}}
            # The same on all nodes of one start of the job, and on no other.
            - name: FLATOUT_JOB
              valueFrom:
                fieldRef: {{fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
{variables}          ports: [{{containerPort: {port}}}]
          resources: {resources}
          volumeMounts:
            - {{name: shared-memory, mountPath: /dev/shm}}
{mounts}      volumes:
        # Loader workers pass batches through /dev/shm, which would have 64 MiB.
        - {{name: shared-memory, emptyDir: {shared}}}
{volumes}"""
OTHERS = """\
      # Any other error ends the job.
      - action: FailJob
        onExitCodes: {operator: NotIn, values: [0]}
"""


def text(request: LaunchRequest) -> str:
    """The file for kubectl: all objects except the code. Raises UserError."""
    own, secret = name(request), request.option("pull-secret")
    # Kueue starts the job when this queue has room for all of its pods.
    queue = {"kueue.x-k8s.io/queue-name": request.queue} if request.queue else {}
    metadata = {
        "name": own,
        "namespace": request.option("namespace") or None,
        "labels": {**labels(request), **queue},
    }
    pod = {
        "serviceAccountName": request.option("service-account") or None,
        "imagePullSecrets": [{"name": secret}] if secret else None,
        "nodeSelector": _selector(request) or None,
    }
    limit = None if request.time_s is None else max(1, round(request.time_s))
    shm = request.option("shm")
    volumes, mounts = _volumes(request)
    given = ({"name": key, "value": _literal(text)} for key, text in request.variables)
    image = request.image or "registry.example.org/training"
    lines = [
        f"{request.shown} on {request.nodes} nodes, written by flatout launch kubernetes.",
        "It is yours: edit it, and submit it again with kubectl.",
        f"The image: flatout env docker; docker build -t {image} .; docker push {image}",
    ]
    if carries_code(request):
        archive = f"--from-file={ARCHIVE}"
        lines.append(f"The code: kubectl create configmap {code_map(request)} {archive}")
    seconds = request.option("grace", str(GRACE_S))
    if not seconds.isdecimal():
        raise UserError(f"--set grace={seconds} is no number", f"--set grace={GRACE_S}")
    return FILE.format(
        head=yaml_text.comment("\n".join([*lines, "Submit: kubectl create -f job.yaml"])),
        metadata=yaml_text.entries(metadata, "  "),
        name=yaml_text.value(own),
        port=PORT,
        nodes=request.nodes,
        failures=request.restarts * request.nodes,
        limit=yaml_text.entries({"activeDeadlineSeconds": limit}, "  "),
        saved=SAVED_EXIT,
        terminated=TERMINATED_EXIT,
        lost=LOST_EXIT,
        others="" if request.restarts else OTHERS,
        labels=yaml_text.value(labels(request)),
        grace_s=int(seconds),
        pod=yaml_text.entries(pod, "      "),
        container=CONTAINER,
        image=yaml_text.value(request.image),
        script=yaml_text.block(_script(request), " " * 14),
        leader=yaml_text.value(f"{own}-0.{own}:{PORT}"),
        variables=yaml_text.items(given, " " * 12),
        resources=yaml_text.value(_resources(request)),
        mounts=yaml_text.items(mounts, " " * 12),
        shared=yaml_text.value({"medium": "Memory"} | ({"sizeLimit": shm} if shm else {})),
        volumes=yaml_text.items(volumes, " " * 8),
    )


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


def labels(request: LaunchRequest) -> dict[str, str]:
    """Labels of every object of the launch."""
    return {"app.kubernetes.io/managed-by": "flatout", LABEL: name(request)}


def _selector(request: LaunchRequest) -> dict[str, str]:
    """The labels in --set node-selector=key=value,key=value."""
    found: dict[str, str] = {}
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


def _literal(text: str) -> str:
    """The text such that Kubernetes does not replace $(NAME) in it."""
    return text.replace("$(", "$$(")


def _resources(request: LaunchRequest) -> dict[str, dict[str, Any]]:
    """The resources that each node must have."""
    if request.gpus == "all":
        raise UserError(
            "--gpus all can be counted only where the cluster is", "name the number: --gpus 8"
        )
    asked = {kind: request.option(kind) for kind in ("cpu", "memory") if request.option(kind)}
    limits: dict[str, Any] = {"memory": asked["memory"]} if "memory" in asked else {}
    if request.gpus:
        limits[request.option("gpu-resource", GPU)] = request.gpus
    return {"requests": asked, "limits": limits}


def _volumes(request: LaunchRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The code and the claims that the user names, and where they are mounted."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if carries_code(request):
        volumes += [
            {"name": "work", "emptyDir": {}},
            {"name": "code", "configMap": {"name": code_map(request)}},
        ]
        mounts += [
            {"name": "work", "mountPath": WORK},
            {"name": "code", "mountPath": CODE, "readOnly": True},
        ]
    for place, (claim, path) in enumerate(claims(request)):
        held = {"name": f"claim-{place}"}
        volumes.append({**held, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({**held, "mountPath": path})
    return volumes, mounts


def claims(request: LaunchRequest) -> list[tuple[str, str]]:
    """Name and path of each claim: --set claim=data:/data,runs:/runs. Raises UserError."""
    found = []
    for given in filter(None, request.option("claim").split(",")):
        claim, colon, path = given.partition(":")
        if not claim or not colon or not path.startswith("/"):
            raise UserError(f"--set claim={given} is no NAME:/PATH", "--set claim=data:/data")
        found.append((claim, path))
    return found
