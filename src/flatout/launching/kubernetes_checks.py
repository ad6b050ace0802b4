"""What can be checked before a launch on Kubernetes is submitted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

from flatout.launching import contract, kubectl, kubernetes_jobs, kubernetes_pod, packing, yaml_text
from flatout.launching.kubectl import Kubectl
from flatout.launching.kubernetes_jobs import JOB, JOBSET, KINDS, OWN, RESOURCES, TRAINJOB
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

CODE_LIMIT = 1_000_000
"""Most bytes of packed code: a ConfigMap holds 1 MiB."""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")
CLUSTER_RUNTIME = "torch-distributed"
"""The runtime that comes with Kubeflow Trainer."""
BUILD = (
    "flatout env docker --write . writes a Dockerfile; build and push it under a name, "
    "and give that name: --image registry.example.org/training"
)


def here(request: LaunchRequest) -> None:
    """Check what needs no cluster. Raises UserError."""
    if not request.image:
        raise UserError("Kubernetes needs an image, and none is named", BUILD)
    if any(mark in request.image for mark in " \t'\"") or request.image != request.image.strip():
        raise UserError(f"--image {request.image!r} is no name of an image", BUILD)
    kind = request.option("kind")
    if kind and kind not in KINDS:
        raise UserError(f"--set kind={kind} is not one of {', '.join(KINDS)}", f"--set kind={JOB}")
    kubernetes_pod.claims(request)
    kubernetes_pod.pod(request)
    if request.option("code") not in ("", "image", "configmap"):
        raise UserError("--set code is neither image nor configmap", "--set code=image")
    if kubernetes_pod.carries_code(request) and request.packed is not None:
        target = io.BytesIO()
        packing.write(request.packed, target)
        size = target.getbuffer().nbytes
        if size > CODE_LIMIT:
            raise UserError(
                f"the packed code has {units.size(size)}, a ConfigMap holds "
                f"{units.size(CODE_LIMIT)}",
                "put the code into the image: --set code=image --set workdir=/PATH/IN/IMAGE",
            )


def settled(request: LaunchRequest, cluster: Kubectl) -> LaunchRequest:
    """The request completed with what only the cluster knows. Raises UserError."""
    kind = _kind(request, cluster)
    options = {**dict(request.options), "kind": kind}
    if kind == TRAINJOB and "runtime" not in options:
        own = cluster.allowed("create", "trainingruntimes.trainer.kubeflow.org")
        options["runtime"] = OWN if own else CLUSTER_RUNTIME
    gpus = request.gpus
    if gpus is not None:
        resource, gpus = _gpus(request, cluster)
        options["gpu-resource"] = resource
    return replace(request, options=tuple(options.items()), gpus=gpus)


def _kind(request: LaunchRequest, cluster: Kubectl) -> str:
    """The best kind of job that the cluster has, or the one requested."""
    asked = request.option("kind")
    if asked == JOB:
        return JOB
    sets = cluster.has(kubernetes_jobs.SETS)
    trainer = sets and asked != JOBSET and cluster.has(kubernetes_jobs.TRAINER)
    there = TRAINJOB if trainer else JOBSET if sets else JOB
    if asked and asked != there:
        name = "JobSet" if asked == JOBSET else "Kubeflow Trainer"
        raise UserError(f"the cluster has no {name}", f"leave --set kind={asked} out")
    return there


def _gpus(request: LaunchRequest, cluster: Kubectl) -> tuple[str, int]:
    """Resource and number of the GPUs of each node. Raises UserError."""
    asked, given = request.gpus, request.option("gpu-resource")
    nodes = _allocatable(cluster)
    if nodes is None:
        if not isinstance(asked, int):
            raise UserError(
                "how many GPUs a node has cannot be read: the cluster does not let you list nodes",
                "name the number: --gpus 8",
            )
        return given or kubernetes_pod.GPU, asked
    found = {
        resource: most
        for resource in ([given] if given else GPU_RESOURCES)
        if (most := max((node.get(resource, 0) for node in nodes), default=0))
    }
    if not isinstance(asked, int):
        if not found:
            raise UserError(
                "no node of the cluster has GPUs now",
                "where nodes are made on demand, name the number: --gpus 8",
            )
        return next(iter(found.items()))
    fitting = (resource for resource, most in found.items() if most >= asked)
    return next(fitting, next(iter(found), given or kubernetes_pod.GPU)), asked


def _allocatable(cluster: Kubectl) -> list[dict[str, int]] | None:
    """The whole-number resources of each node, or None if listing nodes is not allowed."""
    answer = cluster.read("get", "nodes")
    if not isinstance(answer, dict):
        return None
    return [
        {
            name: int(amount)
            for name, amount in item.get("status", {}).get("allocatable", {}).items()
            if str(amount).isdecimal()
        }
        for item in answer.get("items", [])
        if not item.get("spec", {}).get("unschedulable")
    ]


def allowed(request: LaunchRequest, cluster: Kubectl) -> None:
    """Check that the user may create it and that what it needs exists. Raises UserError."""
    resources = [RESOURCES[request.option("kind")]]
    resources += ["configmaps"] if kubernetes_pod.carries_code(request) else []
    resources += ["services"] if request.option("kind") == JOB else []
    for resource in resources:
        if not cluster.allowed("create", resource):
            raise UserError(
                f"you may not create {resource} in namespace {_namespace(request, cluster)}",
                "ask whoever runs the cluster, or name another one: --set namespace=my-team",
            )
    runtime = request.option("runtime", OWN)
    if request.option("kind") == TRAINJOB and runtime != OWN:
        _exists(cluster, "clustertrainingruntimes.trainer.kubeflow.org", runtime, "runtime")
    for claim, _ in kubernetes_pod.claims(request):
        _exists(cluster, "persistentvolumeclaims", claim, "claim")


def _exists(cluster: Kubectl, resource: str, name: str, option: str) -> None:
    answer = cluster.ask("get", resource, name, "--output", "name")
    if answer.returncode and kubectl.missing(answer):
        there = cluster.ask("get", resource, "--output", "name").stdout.split()
        names = ", ".join(sorted(line.rpartition("/")[2] for line in there)) or "none"
        raise UserError(
            f"there is no {resource.partition('.')[0]} {name}; there are: {names}",
            f"--set {option}=... names one of them",
        )


def tried(request: LaunchRequest, cluster: Kubectl) -> tuple[str, ...]:
    """Let the cluster check the objects themselves; returns its warnings. Raises UserError.

    A TrainJob that brings its own runtime is not tried, because the runtime does not exist yet.
    """
    documents = kubernetes_jobs.documents(request)
    if request.option("kind") == TRAINJOB and request.option("runtime") == OWN:
        documents = documents[:1]
    return kubectl.warnings(cluster.tried(yaml_text.documents(documents)))


def warnings(request: LaunchRequest, cluster: Kubectl) -> Iterator[str]:
    """Warnings that do not prevent submission."""
    if request.option("runtime", OWN) != OWN:
        yield (
            f"runtime {request.option('runtime')} of the cluster decides how often a pod is "
            "started again; the script in it goes on only after a preemption"
        )
    nodes = _allocatable(cluster) if request.gpus else None
    resource = request.option("gpu-resource", kubernetes_pod.GPU)
    if nodes is not None and isinstance(request.gpus, int):
        fit = sum(node.get(resource, 0) >= request.gpus for node in nodes)
        if fit < request.nodes:
            yield contract.waits(fit, f"{request.gpus} of {resource}", request.nodes)
    if cluster.ask("auth", "can-i", "get", "pods", "--subresource=log").stdout.startswith("no"):
        yield "you may not read logs in this namespace: they cannot be followed"


def _namespace(request: LaunchRequest, cluster: Kubectl) -> str:
    view = ("config", "view", "--minify", "--output", "jsonpath={..namespace}")
    return request.option("namespace") or cluster.ask(*view).stdout.strip() or "default"
