"""Kubernetes: an indexed Job, one pod on each node.

## The command

    flatout launch kubernetes --image registry/me/training:1 --nodes 2 --gpus 8 --time 4h train.py

The image holds PyTorch and what the script imports: `flatout env docker` writes its Dockerfile.
Settings, each as `--set NAME=VALUE`:

| setting | meaning |
|---|---|
| `context`, `namespace` | those of kubectl, if they are not the current ones |
| `claim` | persistent volumes, claim and path: `data:/data,runs:/runs` |
| `cpu`, `memory`, `shm` | what each node requests; `shm` is the most of the memory it may take |
| `gpu-resource` | `nvidia.com/gpu`, `amd.com/gpu` ...; what the cluster's nodes have |
| `code`, `workdir` | `code=image`: the code is in the image, in that folder |
| `grace` | seconds for saving when a pod is taken away: 120 |
| `node-selector`, `service-account`, `pull-secret` | those of the pods |

`--queue` names a LocalQueue of Kueue.

## What is written

`.flatout/launch/<name>-<time>/job.yaml`, plain and commented: an indexed Job and a headless
Service, by which the pods find pod 0. No operator is needed. In a TrainJob or JobSet of your own,
`flatout run --nodes auto` finds its variables just as well.

Each pod runs `flatout run --nodes auto`, which starts a process for each GPU. /dev/shm is memory,
as loader workers need it. The code folder is sent as a ConfigMap, packed below 1 MB; put a larger
one into the image. Files that look like secrets, data and environments are not sent. What the
script writes is lost with its pod, unless it is below a `claim`.

## What is checked first

kubectl, the cluster's answer, your login; whether you may create jobs; the claims, and the GPUs of
the nodes. Then the cluster itself checks the file in a dry run, so that its rules and admission
apply before anything is created.

## Following and stopping

Pods that wait say why: no node has enough GPUs, an image cannot be pulled. The logs of all pods are
shown as one, with the node before each line; replaced pods are followed too. Ctrl-C leaves the job
running. `--cancel` deletes it, with its code and Service. A job that has ended stays for a week.

## Restarts

After a preemption (a DisruptionTarget of any pod) all pods always start again. With
`flatout.Checkpoint` and a `claim` they continue at the exact sample. The same happens if a machine
is lost: the others end with 79, which does not count as an error, and wait up to an hour
(`--nodes-wait` in the file) for the replacement pod. The Job's controller itself waits longer after
each pod that has ended: 10 s, then twice as long, at most ten minutes. After an error of the
program, all start again only with `--restarts N`.

## What was really run

A real API server and controller-manager (1.36) and kubectl, without containers: two nodes of ours
run each pod's own command as process 1 of its namespaces, with its claim. A Job trained with the
same losses as one process; one whose program failed was not started again. One pod was evicted
(SIGTERM, its grace period), later the machine of the other, node 0, was lost at once (killed, then
given up with a DisruptionTarget): the controller made both pods anew each time, and they went on
from the checkpoint to the same losses as two ranks that nobody disturbed, to the last digit, with
dropout. They trained again 33 s and 92 s later, most of which the controller waited. Not yet run: a
kubelet, a GPU, an image.

## References

- https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/
- https://kubernetes.io/docs/tasks/job/pod-failure-policy/
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.launching import (
    contract,
    engine_calls,
    kubectl,
    kubernetes_checks,
    kubernetes_job,
    kubernetes_pods,
    packing,
)
from flatout.launching.kubectl import Kubectl
from flatout.launching.kubernetes_job import RESOURCE
from flatout.nouns.launched import (
    CheckedLaunch,
    JobState,
    LaunchCosts,
    LaunchEngine,
    LaunchFile,
    LaunchRequest,
    LogLine,
    SubmittedJob,
)

ENGINE = LaunchEngine(
    title="Kubernetes",
    since="0.2.0",
    needs="kubectl, and an image",
    travels=True,
    logs_end=True,
    understands=("queue", "image"),
    settings=(
        *("context", "namespace", "claim", "cpu", "memory", "shm"),
        *("gpu-resource", "code", "workdir", "grace"),
        *("node-selector", "service-account", "pull-secret"),
    ),
)
FILE = "job.yaml"
CANCELLED = "cancelled"
"""The file in the launch's folder that says it was ended from here."""
LOST = "the script's files are lost with its pods; to mount a volume: --set claim=NAME:/PATH"


def check(request: LaunchRequest) -> CheckedLaunch:
    """Ask the cluster whether it would accept this job."""
    engine_calls.need("kubectl", kubectl.INSTALL)
    kubernetes_checks.here(request)
    cluster = Kubectl.of(dict(request.options))
    cluster.need("get", "--raw", "/version")
    settled = kubernetes_checks.settled(request, cluster)
    kubernetes_checks.allowed(settled, cluster)
    warned = kubectl.warnings(cluster.tried(kubernetes_job.text(settled)))
    return CheckedLaunch(settled, (*warned, *kubernetes_checks.warnings(settled, cluster)))


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    """The objects in one file."""
    return (LaunchFile(FILE, kubernetes_job.text(request)),)


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Send the code, then the objects, which keep the code until they are deleted."""
    cluster = Kubectl.of(dict(request.options))
    name = kubernetes_job.name(request)
    belongs = [f"services/{name}"]
    if kubernetes_job.carries_code(request) and request.packed is not None:
        belongs.append(f"configmaps/{kubernetes_job.code_map(request)}")
        _send_code(request, cluster, folder)
    try:
        cluster.need("create", "--filename", str(folder / FILE), limit_s=60)
    except BaseException:
        for thing in (f"{RESOURCE}/{name}", *belongs):
            cluster.ask("delete", thing, "--ignore-not-found", "--wait=false")
        raise
    _hold(cluster, name, belongs)
    extra = {
        "context": request.option("context"),
        "namespace": request.option("namespace"),
        "belongs": " ".join(belongs),
    }
    return SubmittedJob(
        "kubernetes", name, request.name, str(folder), time.time(), request.nodes, extra
    )


def state(job: SubmittedJob) -> JobState:
    """The state by the job's conditions and its pods."""
    cluster = Kubectl.of(job.extra)
    status, answer = cluster.status(RESOURCE, job.id)
    if status is None:
        if not kubectl.missing(answer):
            return JobState("unknown", kubectl.said(answer))
        if Path(job.folder, CANCELLED).exists():
            return JobState("cancelled")
        return JobState("unknown", f"the cluster has no {RESOURCE} {job.id} any more")
    pods = kubernetes_pods.of(cluster, _selector(job)) or []
    nodes = tuple(dict.fromkeys(pod.node for pod in pods if pod.node))
    conditions = {
        condition.get("type"): condition
        for condition in status.get("conditions") or []
        if condition.get("status") == "True"
    }
    if "Complete" in conditions:
        return JobState("ended", "", 0, nodes)
    if "Failed" in conditions:
        return _failed(conditions["Failed"], pods, nodes)
    if "Suspended" in conditions:
        return JobState("queued", "it is suspended, by a queue or by a user")
    if any(pod.phase == "Running" for pod in pods) and not kubernetes_pods.waiting(pods):
        return JobState("running", "", None, nodes)
    return JobState("queued", kubernetes_pods.waiting(pods))


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    """The logs of all pods."""
    final = lambda: state(job).final  # noqa: E731
    return kubernetes_pods.lines(Kubectl.of(job.extra), _selector(job), final)


def cancel(job: SubmittedJob) -> None:
    """Delete the job with everything that belongs to it."""
    cluster = Kubectl.of(job.extra)
    cluster.need("delete", RESOURCE, job.id, "--wait=false")
    for thing in job.extra.get("belongs", "").split():
        cluster.ask("delete", thing, "--ignore-not-found", "--wait=false")
    with suppress(OSError):
        Path(job.folder, CANCELLED).touch()


def costs(request: LaunchRequest) -> LaunchCosts:
    """The resources requested; the cluster knows no prices."""
    return contract.costs(request, () if request.option("claim") else (LOST,))


def _selector(job: SubmittedJob) -> str:
    """The label selector of its pods."""
    return f"job-name={job.id}"


def _failed(
    condition: Mapping[str, Any], pods: list[kubernetes_pods.PodState], nodes: tuple[str, ...]
) -> JobState:
    if condition.get("reason") == "DeadlineExceeded":
        return JobState("failed", "it reached its time limit", None, nodes)
    pod = kubernetes_pods.first_failed(pods)
    if pod is None:
        said = " ".join(str(condition.get("message") or condition.get("reason") or "").split())
        return JobState("failed", said, None, nodes)
    where = f"{pod.source} ({pod.node})" if pod.node else pod.source
    why = f", {pod.reason}" if pod.reason else ""
    detail = f"{where} ended first{why}"
    return JobState("failed", detail, pod.exit_code, nodes, first=pod.source)


def _send_code(request: LaunchRequest, cluster: Kubectl, folder: Path) -> None:
    """Send the packed code as a ConfigMap and keep it in the folder. Raises UserError."""
    assert request.packed is not None
    archive, name = folder / kubernetes_job.ARCHIVE, kubernetes_job.code_map(request)
    with archive.open("wb") as file:
        packing.write(request.packed, file)
    cluster.need("create", "configmap", name, f"--from-file={archive}", limit_s=60)
    labels = (f"{key}={value}" for key, value in kubernetes_job.labels(request).items())
    cluster.ask("label", "configmap", name, *labels)


def _hold(cluster: Kubectl, name: str, belongs: list[str]) -> None:
    """Have these deleted with the job. If that is not allowed, they stay until --cancel."""
    document = cluster.read("get", RESOURCE, name)
    if not isinstance(document, dict):
        return
    owner = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": name,
        "uid": document["metadata"]["uid"],
    }
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    for thing in belongs:
        cluster.ask("patch", thing, "--type", "merge", "--patch", patch)
