"""The objects of a launch on Kubernetes: a TrainJob, a JobSet or a Job."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.launching import kubernetes_pod, yaml_text
from flatout.launching.contract import LOST_EXIT, SAVED_EXIT, TERMINATED_EXIT
from flatout.launching.kubernetes_pod import CONTAINER, PORT
from flatout.launching.yaml_text import Entry, Noted
from flatout.nouns.launched import LaunchRequest

TRAINJOB, JOBSET, JOB = "trainjob", "jobset", "job"
KINDS = (TRAINJOB, JOBSET, JOB)
"""The first kind that the cluster has is used."""
RESOURCES = {
    TRAINJOB: "trainjobs.trainer.kubeflow.org",
    JOBSET: "jobsets.jobset.x-k8s.io",
    JOB: "jobs.batch",
}
TRAINER, SETS = "trainer.kubeflow.org/v1alpha1", "jobset.x-k8s.io/v1alpha2"
OWN = "own"
"""Value of --set runtime: a TrainingRuntime of the launch itself."""
KEPT_S = 7 * 24 * 3600
"""Seconds for which a job that has ended is kept with its logs."""

Document = tuple[str, Mapping[str, Entry]]


def text(request: LaunchRequest) -> str:
    """The file for kubectl."""
    return yaml_text.documents(documents(request))


def documents(request: LaunchRequest) -> list[Document]:
    """All objects except the code, each with the comment above it."""
    kind = request.option("kind", TRAINJOB)
    made = {TRAINJOB: _trainjob, JOBSET: _jobset, JOB: _job}[kind](request)
    head, first = made[0]
    return [(f"{_head(request)}\n\n{head}", first), *made[1:]]


def _head(request: LaunchRequest) -> str:
    image = request.image or "registry.example.org/training"
    lines = [
        f"{request.shown} on {request.nodes} nodes, written by flatout launch kubernetes.",
        "It is yours: edit it, and submit it again with kubectl.",
        f"The image: flatout env docker; docker build -t {image} .; docker push {image}",
    ]
    if kubernetes_pod.carries_code(request):
        name = kubernetes_pod.code_map(request)
        archive = kubernetes_pod.ARCHIVE
        lines.append(f"The code: kubectl create configmap {name} --from-file={archive}")
    return "\n".join([*lines, "Submit: kubectl create -f job.yaml"])


def _metadata(request: LaunchRequest, name: str = "") -> dict[str, Entry]:
    return {
        "name": name or kubernetes_pod.name(request),
        "namespace": request.option("namespace") or None,
        "labels": kubernetes_pod.labels(request),
    }


# Kubeflow Trainer ---------------------------------------------------------------------------------


def _trainjob(request: LaunchRequest) -> list[Document]:
    own = request.option("runtime", OWN) == OWN
    name = kubernetes_pod.name(request)
    reference = {"kind": "TrainingRuntime", "name": name} if own else None
    runtime = reference or {"name": request.option("runtime")}
    trainer: dict[str, Entry] = {
        "image": request.image,
        "numNodes": request.nodes,
        "command": ["sh", "-c"],
        "args": [kubernetes_pod.script(request, restarted_in_place=not own)],
        "resourcesPerNode": kubernetes_pod.resources(request),
        "env": kubernetes_pod.variables(request),
    }
    job: Document = (
        "What is trained. Each node runs one container; flatout starts the processes in it.",
        {
            "apiVersion": TRAINER,
            "kind": "TrainJob",
            "metadata": _metadata(request),
            "spec": {
                "runtimeRef": runtime,
                "activeDeadlineSeconds": None if own else _limit(request),
                "trainer": trainer,
                "runtimePatches": None if own else _patches(request),
            },
        },
    )
    return [*([_runtime(request)] if own else []), job]


def _runtime(request: LaunchRequest) -> Document:
    """The job's own runtime, which says what is restarted; a TrainJob cannot."""
    template = _replicated(request, _trained(request))
    template["template"] = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        **_mapping(template["template"]),
    }
    return (
        "How it is trained: the runtime of this job alone, for a TrainJob itself cannot say what "
        "is restarted.",
        {
            "apiVersion": TRAINER,
            "kind": "TrainingRuntime",
            "metadata": {
                **_metadata(request),
                "labels": {
                    **kubernetes_pod.labels(request),
                    "kueue.x-k8s.io/queue-name": None,
                    "trainer.kubeflow.org/framework": "torch",
                },
            },
            "spec": {
                "mlPolicy": {"numNodes": request.nodes, "torch": {}},
                "template": {
                    "spec": {**_set_policy(request), "replicatedJobs": [template]},
                },
            },
        },
    )


def _trained(request: LaunchRequest) -> dict[str, Entry]:
    """The runtime's container; image, command and variables are the TrainJob's."""
    return {
        "name": CONTAINER,
        "image": request.image,
        "volumeMounts": kubernetes_pod.mounts(request, restarted_in_place=False),
    }


def _patches(request: LaunchRequest) -> list[Entry]:
    """Changes to the pods of a cluster's runtime (Kubeflow Trainer 2.2 and newer)."""
    volumes = kubernetes_pod.volumes(request, restarted_in_place=True)
    mounts = kubernetes_pod.mounts(request, restarted_in_place=True)
    pod: dict[str, Entry] = {
        **kubernetes_pod.pod(request),
        "volumes": volumes,
        "containers": [{"name": CONTAINER, "volumeMounts": mounts}],
    }
    job: dict[str, Entry] = {"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}
    patch: dict[str, Entry] = {"template": {"spec": {"replicatedJobs": [job]}}}
    return [{"manager": "flatout/launch", "trainingRuntimeSpec": patch}]


# JobSet -------------------------------------------------------------------------------------------


def _jobset(request: LaunchRequest) -> list[Document]:
    name = kubernetes_pod.name(request)
    leader = f"{name}-{CONTAINER}-0-0.{name}"
    container = kubernetes_pod.container(request, leader)
    spec: dict[str, Entry] = {
        **_set_policy(request),
        "ttlSecondsAfterFinished": Noted(KEPT_S, "kept for a week after its end"),
        "replicatedJobs": [_replicated(request, container)],
    }
    return [
        (
            "A job of several pods that know each other by name.",
            {
                "apiVersion": SETS,
                "kind": "JobSet",
                "metadata": _metadata(request),
                "spec": spec,
            },
        )
    ]


def _set_policy(request: LaunchRequest) -> dict[str, Entry]:
    """All pods are restarted together, because each needs the others."""
    rule: dict[str, Entry] = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    policy: dict[str, Entry] = {
        "maxRestarts": Noted(request.restarts, "after an error of the program: --restarts"),
        "rules": [Noted(rule, "after a preemption, always")],
    }
    return {"failurePolicy": policy}


def _replicated(request: LaunchRequest, container: Mapping[str, Entry]) -> dict[str, Entry]:
    """The set's only replicated job: a pod on each node."""
    spec: dict[str, Entry] = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": Noted(0, "not pod by pod: the set restarts as a whole"),
        "activeDeadlineSeconds": _limit(request),
        "podFailurePolicy": {
            "rules": _preempted("FailJob", "tells the set that this was no error"),
        },
        "template": _template(request, container),
    }
    return {"name": CONTAINER, "replicas": 1, "template": {"spec": spec}}


# Job ----------------------------------------------------------------------------------------------


def _job(request: LaunchRequest) -> list[Document]:
    name = kubernetes_pod.name(request)
    container = kubernetes_pod.container(request, f"{name}-0.{name}")
    rules = _preempted("Ignore", "a preempted pod is made anew, and does not count as an error")
    if not request.restarts:
        other: dict[str, Entry] = {
            "action": "FailJob",
            "onExitCodes": {"operator": "NotIn", "values": [0]},
        }
        rules.append(Noted(other, "any other error ends the job"))
    spec: dict[str, Entry] = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": Noted("Indexed", "each pod gets its number in JOB_COMPLETION_INDEX"),
        "backoffLimit": Noted(
            request.restarts * request.nodes, "pods that may fail: an error ends all of a start"
        ),
        "activeDeadlineSeconds": _limit(request),
        "ttlSecondsAfterFinished": Noted(KEPT_S, "kept for a week after its end"),
        "podFailurePolicy": {"rules": rules},
        "template": _template(request, container, subdomain=name),
    }
    service: dict[str, Entry] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
            "ports": [{"name": "meeting", "port": PORT}],
        },
    }
    job: dict[str, Entry] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request),
        "spec": spec,
    }
    return [("By this the pods find each other.", service), ("A pod on each node.", job)]


# Shared -------------------------------------------------------------------------------------------


def _template(
    request: LaunchRequest, container: Mapping[str, Entry], subdomain: str | None = None
) -> dict[str, Entry]:
    spec: dict[str, Entry] = {
        "restartPolicy": "Never",
        "subdomain": subdomain,
        **kubernetes_pod.pod(request),
        "containers": [container],
        "volumes": kubernetes_pod.volumes(request, restarted_in_place=False),
    }
    labels = {**kubernetes_pod.labels(request), "kueue.x-k8s.io/queue-name": None}
    return {"metadata": {"labels": labels}, "spec": spec}


def _preempted(action: str, why: str) -> list[Entry]:
    """Rules for pods that were taken away, and for those that ended as a result."""
    condition: dict[str, Entry] = {"type": "DisruptionTarget", "status": "True"}
    return [
        Noted({"action": action, "onPodConditions": [condition]}, why),
        Noted(
            {"action": action, "onExitCodes": _ended_with(SAVED_EXIT, TERMINATED_EXIT)},
            f"{SAVED_EXIT}: the state is saved; {TERMINATED_EXIT}: ended by SIGTERM. "
            "Nodes end so when another one is taken away",
        ),
        Noted(
            {"action": "Ignore", "onExitCodes": _ended_with(LOST_EXIT)},
            f"{LOST_EXIT}: it has lost another node, whose own end decides; it waits for all anew",
        ),
    ]


def _ended_with(*codes: int) -> dict[str, Entry]:
    return {"containerName": CONTAINER, "operator": "In", "values": [*codes]}


def _limit(request: LaunchRequest) -> int | None:
    return None if request.time_s is None else max(1, round(request.time_s))


def _mapping(entry: Entry) -> Mapping[str, Entry]:
    assert isinstance(entry, Mapping)
    return entry
