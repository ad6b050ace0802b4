"""What can be checked before a launch on Kubernetes is submitted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

from flatout.launching import contract, kubectl, kubernetes_job, packing
from flatout.launching.kubectl import Kubectl
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

CODE_LIMIT = 1_000_000
"""Most bytes of packed code: a ConfigMap holds 1 MiB."""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")
BUILD = (
    "flatout env docker > Dockerfile writes one; build and push it under a name, "
    "and give that name: --image registry.example.org/training"
)


def here(request: LaunchRequest) -> None:
    """Check what needs no cluster. Raises UserError."""
    if not request.image:
        raise UserError("Kubernetes needs an image, and none is named", BUILD)
    if any(mark in request.image for mark in " \t'\"") or request.image != request.image.strip():
        raise UserError(f"--image {request.image!r} is no name of an image", BUILD)
    kubernetes_job.text(replace(request, gpus=None))  # GPUs are counted by the cluster
    if request.option("code") not in ("", "image", "configmap"):
        raise UserError("--set code is neither image nor configmap", "--set code=image")
    if kubernetes_job.carries_code(request) and request.packed is not None:
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
    if request.gpus is None:
        return request
    resource, gpus = _gpus(request, cluster)
    options = {**dict(request.options), "gpu-resource": resource}
    return replace(request, options=tuple(options.items()), gpus=gpus)


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
        return given or kubernetes_job.GPU, asked
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
    return next(fitting, next(iter(found), given or kubernetes_job.GPU)), asked


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
    resources = [kubernetes_job.RESOURCE, "services"]
    resources += ["configmaps"] if kubernetes_job.carries_code(request) else []
    for resource in resources:
        if not cluster.allowed("create", resource):
            view = ("config", "view", "--minify", "--output", "jsonpath={..namespace}")
            namespace = request.option("namespace") or cluster.ask(*view).stdout.strip()
            raise UserError(
                f"you may not create {resource} in namespace {namespace or 'default'}",
                "ask whoever runs the cluster, or name another one: --set namespace=my-team",
            )
    for claim, _ in kubernetes_job.claims(request):
        answer = cluster.ask("get", "persistentvolumeclaims", claim, "--output", "name")
        if answer.returncode and kubectl.missing(answer):
            there = cluster.ask("get", "persistentvolumeclaims", "--output", "name").stdout.split()
            names = ", ".join(sorted(line.rpartition("/")[2] for line in there)) or "none"
            raise UserError(
                f"there is no persistentvolumeclaims {claim}; there are: {names}",
                "--set claim=... names one of them",
            )


def warnings(request: LaunchRequest, cluster: Kubectl) -> Iterator[str]:
    """Warnings that do not prevent submission."""
    nodes = _allocatable(cluster) if request.gpus else None
    resource = request.option("gpu-resource", kubernetes_job.GPU)
    if nodes is not None and isinstance(request.gpus, int):
        fit = sum(node.get(resource, 0) >= request.gpus for node in nodes)
        if fit < request.nodes:
            yield contract.waits(fit, f"{request.gpus} of {resource}", request.nodes)
    if cluster.ask("auth", "can-i", "get", "pods", "--subresource=log").stdout.startswith("no"):
        yield "you may not read logs in this namespace: they cannot be followed"
