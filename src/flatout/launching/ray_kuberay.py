"""A launch on a Ray cluster that KubeRay makes for it: a RayJob with flatout's driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flatout.launching import (
    engine_calls,
    kubectl,
    kubernetes_checks,
    kubernetes_pod,
    packing,
    tails,
    yaml_text,
)
from flatout.launching.kubectl import Kubectl
from flatout.launching.kubernetes_pod import ARCHIVE, CODE, WORK
from flatout.launching.yaml_text import Entry, Noted
from flatout.nouns.errors import UserError
from flatout.nouns.launched import JobState, LaunchRequest, LaunchState, SubmittedJob

FILE = "rayjob.yaml"
VERSION = "ray.io/v1"
RESOURCE = "rayjobs.ray.io"
SETTINGS = ("context", "namespace", "memory", "claim", "gpu-resource", "node-selector")
STATES: dict[str, LaunchState] = {
    "SUCCEEDED": "ended",
    "FAILED": "failed",
    "STOPPED": "cancelled",
    "RUNNING": "running",
}


def asked(request: LaunchRequest) -> bool:
    """Whether the launch brings its own cluster."""
    return request.option("kuberay") == "yes"


def check(request: LaunchRequest) -> LaunchRequest:
    """Ask the cluster. Raises UserError."""
    engine_calls.need("kubectl", kubectl.INSTALL)
    kubernetes_checks.here(request)
    cluster = Kubectl.of(dict(request.options))
    cluster.need("get", "--raw", "/version")
    if not cluster.has(VERSION):
        raise UserError(
            f"the cluster has no KubeRay ({VERSION})",
            "flatout launch kubernetes needs none; or install it: https://docs.ray.io/en/latest/"
            "cluster/kubernetes/getting-started/kuberay-operator-installation.html",
        )
    for resource in (RESOURCE, "configmaps"):
        if not cluster.allowed("create", resource):
            raise UserError(
                f"you may not create {resource} in this namespace",
                "name another one: --set namespace=my-team",
            )
    cluster.tried(text(request))
    return request


REPLICAS = ("replicas", "minReplicas", "maxReplicas")


def text(request: LaunchRequest) -> str:
    """The RayJob."""
    name = kubernetes_pod.name(request)
    head = (
        f"{request.shown} on {request.nodes} nodes, written by flatout launch ray.\n"
        f"The code: kubectl create configmap {kubernetes_pod.code_map(request)} "
        f"--from-file={ARCHIVE} --from-file=ray_job.py\n"
        f"Submit: kubectl create -f {FILE}"
    )
    spec: dict[str, Entry] = {
        "entrypoint": f"python {WORK}/ray_job.py",
        "shutdownAfterJobFinishes": Noted(True, "its nodes go when it has ended; the RayJob stays"),
        "activeDeadlineSeconds": None if request.time_s is None else round(request.time_s) + 600,
        "backoffLimit": Noted(0, "the driver itself starts all nodes again: --restarts"),
        "rayClusterSpec": {
            "headGroupSpec": {
                "rayStartParams": Noted({"num-cpus": "0"}, "it runs the driver alone"),
                "template": _template(replace(request, gpus=None), "head"),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "node",
                    **dict.fromkeys(REPLICAS, request.nodes),
                    "rayStartParams": {},
                    "template": _template(request, "worker"),
                }
            ],
        },
    }
    document: dict[str, Entry] = {
        "apiVersion": VERSION,
        "kind": "RayJob",
        "metadata": {
            "name": name,
            "namespace": request.option("namespace") or None,
            "labels": kubernetes_pod.labels(request),
        },
        "spec": {key: value for key, value in spec.items() if value is not None},
    }
    return yaml_text.documents([(head, document)])


def _template(request: LaunchRequest, name: str) -> dict[str, Entry]:
    """A pod with the unpacked code; KubeRay decides what its container runs."""
    mounts = kubernetes_pod.mounts(request, restarted_in_place=False)
    unpack = f"tar -xzf {CODE}/{ARCHIVE} -C {WORK} && cp {CODE}/ray_job.py {WORK}/"
    initial: dict[str, Entry] = {
        "name": "code",
        "image": request.image,
        "command": ["sh", "-c", unpack],
        "volumeMounts": mounts,
    }
    container: dict[str, Entry] = {
        "name": f"ray-{name}",
        "image": request.image,
        "resources": kubernetes_pod.resources(request),
        "volumeMounts": mounts,
    }
    spec: dict[str, Entry] = {
        **kubernetes_pod.pod(request),
        "initContainers": [initial],
        "containers": [container],
        "volumes": kubernetes_pod.volumes(request, restarted_in_place=False),
    }
    return {"spec": spec}


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Send code and driver as a ConfigMap, then the RayJob. Raises UserError."""
    assert request.packed is not None
    cluster, name = Kubectl.of(dict(request.options)), kubernetes_pod.name(request)
    with (folder / ARCHIVE).open("wb") as file:
        packing.write(request.packed, file)
    code = kubernetes_pod.code_map(request)
    files = (folder / ARCHIVE, folder / "ray_job.py")
    words = [f"--from-file={path}" for path in files]
    cluster.need("create", "configmap", code, *words, limit_s=60)
    try:
        cluster.need("create", "--filename", str(folder / FILE), limit_s=60)
    except BaseException:
        cluster.ask("delete", "configmap", code, "--ignore-not-found", "--wait=false")
        raise
    extra = {
        "kuberay": "yes",
        "context": request.option("context"),
        "namespace": request.option("namespace"),
        "code": code,
    }
    return SubmittedJob("ray", name, request.name, str(folder), time.time(), request.nodes, extra)


def state(job: SubmittedJob) -> JobState:
    """The state by the RayJob's status."""
    status, answer = Kubectl.of(job.extra).status(RESOURCE, job.id)
    if status is None:
        return JobState("unknown", kubectl.said(answer))
    deployed = str(status.get("jobDeploymentStatus") or "")
    why = " ".join(str(status.get("message") or status.get("reason") or "").split())
    if deployed in ("Failed", "ValidationFailed"):
        return JobState("failed", why)
    found = STATES.get(str(status.get("jobStatus") or ""), "queued")
    if found in ("queued", "failed"):
        return JobState(found, why or (f"its Ray cluster: {deployed}" if deployed else ""))
    return JobState(found, "", 0 if found == "ended" else None)


def logs(job: SubmittedJob) -> Iterator[str | None]:
    """The driver's output, as printed by the pod that submits it."""
    cluster = Kubectl.of(job.extra)
    while True:
        now = state(job)
        if now.state != "queued":
            follow = [] if now.final else ["--follow"]
            yield from engine_calls.lines_of(cluster.command("logs", f"job/{job.id}", *follow))
            if now.final or state(job).final:
                return
        yield from tails.pause(2)


def cancel(job: SubmittedJob) -> None:
    """Delete it with its cluster and its code. Raises UserError."""
    cluster = Kubectl.of(job.extra)
    cluster.need("delete", RESOURCE, job.id, "--wait=false")
    cluster.ask("delete", "configmap", job.extra.get("code", ""), "--ignore-not-found")
