"""The pods of a launch while they run: their nodes, what they wait for, how they ended, logs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flatout.launching import engine_calls, tails
from flatout.launching.contract import LOST_EXIT, SAVED_EXIT, TERMINATED_EXIT
from flatout.launching.kubectl import Kubectl
from flatout.launching.kubernetes_job import CONTAINER
from flatout.nouns.launched import LogLine

INDEX = "batch.kubernetes.io/job-completion-index"
LOOK_S = 1.0
"""Seconds between looks for new pods; one look falls between a job's end and following's end."""
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) ?(.*)", re.DOTALL)
PREEMPTED = (SAVED_EXIT, TERMINATED_EXIT, LOST_EXIT)
"""Exit codes of nodes that ended because another node did."""
STUCK = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "InvalidImageName": "the image's name is not valid",
    "ImageInspectError": "its image cannot be read",
    "CreateContainerConfigError": "its container cannot be created",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}


@dataclass(frozen=True)
class PodState:
    """One pod as the cluster describes it."""

    name: str
    uid: str
    index: int
    """Index of the node, from 0."""
    phase: str
    """Pending, Running, Succeeded, Failed."""
    node: str
    started: bool
    """Whether its container has run, so that there is a log."""
    waits_for: str
    exit_code: int | None
    reason: str
    ended_at: str

    @property
    def source(self) -> str:
        """The source that its lines are marked with."""
        return f"node {self.index}"

    @property
    def over(self) -> bool:
        """Whether this pod will write nothing more."""
        return self.phase in ("Succeeded", "Failed")


def of(kubectl: Kubectl, selector: str) -> list[PodState] | None:
    """The launch's pods, or None if the cluster does not answer."""
    answer = kubectl.read("get", "pods", "--selector", selector)
    if not isinstance(answer, dict):
        return None
    return sorted((_pod(item) for item in answer.get("items", [])), key=lambda pod: pod.index)


def _pod(item: Mapping[str, Any]) -> PodState:
    metadata, status = item.get("metadata", {}), item.get("status", {})
    statuses = [
        one for one in status.get("containerStatuses") or [] if one.get("name") == CONTAINER
    ]
    current = (statuses[0] if statuses else {}).get("state") or {}
    ended = current.get("terminated") or {}
    index = (metadata.get("annotations") or {}).get(INDEX, "0")
    return PodState(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        index=int(index) if index.isdecimal() else 0,
        phase=status.get("phase", ""),
        node=(item.get("spec") or {}).get("nodeName", ""),
        started=bool({"running", "terminated"} & current.keys()),
        waits_for=_waits_for(status, current),
        exit_code=ended.get("exitCode"),
        reason=_reason(status, ended),
        ended_at=ended.get("finishedAt") or "",
    )


def _waits_for(status: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """What keeps a pod from running, in plain words."""
    waiting = current.get("waiting") or {}
    if waiting.get("reason") in STUCK:
        words = STUCK[waiting["reason"]]
        said = " ".join(str(waiting.get("message", "")).split())
        return f"{words}: {said}" if said else words
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = str(condition.get("message") or "").strip()
            return f"no node can take it: {said}" if said else "no place for it"
    return ""


def _reason(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"preempted: {condition.get('reason', '')}".removesuffix(": ")
    reason = ended.get("reason") or status.get("reason") or ""
    return "" if reason in ("Error", "Completed") else str(reason)


def waiting(pods: list[PodState]) -> str:
    """Why the job does not run yet; empty if nothing prevents it."""
    for pod in pods:
        if pod.waits_for and not pod.started:
            return f"{pod.source}: {pod.waits_for}"
    return ""


def first_failed(pods: list[PodState]) -> PodState | None:
    """The pod whose program failed first; the others end because it did."""
    failed = [pod for pod in pods if pod.exit_code]
    causes = [
        pod
        for pod in failed
        if pod.exit_code not in PREEMPTED and not pod.reason.startswith("preempted")
    ]
    return min(causes or failed, key=lambda pod: (pod.ended_at or "9", pod.index), default=None)


def lines(kubectl: Kubectl, selector: str, final: Callable[[], bool]) -> Iterator[LogLine | None]:
    """Lines of all pods, including later ones; None if there is nothing new. Never raises.

    final: whether the job has ended; it then ends after the last line.
    """
    readers: dict[str, Iterator[LogLine | None]] = {}
    read: set[str] = set()
    looked = -LOOK_S
    while True:
        if time.monotonic() - looked >= LOOK_S:
            # Asked before the pods are listed, so that none can come later.
            over = readers.keys() == read and final()
            for pod in of(kubectl, selector) or []:
                if pod.started and pod.uid not in readers:
                    follow = _whole if pod.over else _followed
                    readers[pod.uid] = follow(kubectl, pod)
            if over and readers.keys() == read:
                return
            looked = time.monotonic()
        for uid in readers.keys() - read:
            for line in readers[uid]:
                if line is None:
                    break
                yield line
            else:
                read.add(uid)
        yield None


def _whole(kubectl: Kubectl, pod: PodState) -> Iterator[LogLine | None]:
    """The log of a pod that has ended."""
    answer = kubectl.ask("logs", pod.name, "--container", CONTAINER, limit_s=60)
    if answer.returncode:
        yield LogLine(pod.source, f"(its log cannot be read: {answer.said})")
        return
    for text in answer.stdout.splitlines():
        yield LogLine(pod.source, text)


def _followed(kubectl: Kubectl, pod: PodState) -> Iterator[LogLine | None]:
    """The log of a running pod; after a lost connection it resumes at the same line."""
    last, seen = "", 0  # time of the last line, and number of lines with it
    while True:
        since = ["--since-time", last] if last else []
        words = ["logs", "--follow", "--timestamps", pod.name, "--container", CONTAINER, *since]
        skip, begun = seen, last
        for raw in engine_calls.lines_of(kubectl.command(*words)):
            if raw is None:
                yield None
                continue
            match = STAMP.fullmatch(raw)
            if match is None:
                continue  # kubectl's own complaint
            stamp, text = match.groups()
            if begun and stamp < begun:
                continue  # the cluster starts at the full second
            if stamp == begun and skip:
                skip -= 1
                continue
            seen = seen + 1 if stamp == last else 1
            last = stamp
            yield LogLine(pod.source, text)
        if not _runs(kubectl, pod):
            return
        yield from tails.pause(LOOK_S)


def _runs(kubectl: Kubectl, pod: PodState) -> bool:
    """Whether the same container still runs, or might."""
    item = kubectl.read("get", "pod", pod.name)
    if not isinstance(item, dict):
        return kubectl.ask("version").returncode != 0  # the pod is gone, or nothing answers
    now = _pod(item)
    return now.uid == pod.uid and not now.over and now.exit_code is None
