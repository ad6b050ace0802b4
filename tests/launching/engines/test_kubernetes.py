"""The files for Kubernetes, and what kubectl's answers become."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.launching import kubernetes_job
from flatout.launching.engines import kubernetes
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest, LogLine, PackedCode, SubmittedJob
from launching.fake_tool import FakeTool, Table


def asked(options: dict[str, str] | None = None, **changes: Any) -> LaunchRequest:
    """A request as it is after its check."""
    request = LaunchRequest(
        "kubernetes",
        ("train.py", "--words", "$(HOME) it's"),
        "train",
        Path("/code"),
        nodes=2,
        gpus=8,
        time_s=3600.0,
        variables=(("NAME", "$(HOME): yes"),),
        image="registry/me/training:1",
        packed=PackedCode(Path("/code"), ("train.py",), 3),
        options=tuple((options or {}).items()),
        launch_folder=Path("/code/.flatout/launch/train-20261127T100000Z"),
    )
    return replace(request, **changes)


def documents(request: LaunchRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Service and the Job."""
    [file] = kubernetes.files(request)
    assert file.path == "job.yaml"
    service, job = yaml.safe_load_all(file.text)
    return service, job


# The file -----------------------------------------------------------------------------------------


def test_the_job_asks_for_what_was_asked() -> None:
    request = asked({"claim": "data:/data,runs:/runs"})
    name = kubernetes_job.name(request)
    service, job = documents(request)
    assert service["metadata"]["name"] == job["metadata"]["name"] == name
    spec = job["spec"]
    assert (spec["completions"], spec["activeDeadlineSeconds"]) == (2, 3600)
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory"}
    assert volumes["claim-1"]["persistentVolumeClaim"] == {"claimName": "runs"}
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {"/dev/shm", "/data", "/runs", "/flatout/code"} <= set(paths)
    assert len(set(paths)) == len(paths)
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    # By these the pods find the first one.
    assert values["FLATOUT_LEADER"] == f"{name}-0.{name}:29500"
    assert (pod["subdomain"], service["spec"]["selector"]) == (name, {"job-name": name})
    assert values["FLATOUT_NODES"] == "2"
    # Kubernetes would replace $(NAME).
    assert values["NAME"] == "$$(HOME): yes"
    assert "'$$(HOME) it'\"'\"'s'" in container["args"][0]
    assert "$(" not in container["args"][0].replace("$$(", "")


@pytest.mark.parametrize("restarts", [0, 3])
def test_preemption_restarts_and_an_error_only_where_asked(restarts: int) -> None:
    spec = documents(asked(restarts=restarts))[1]["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert [rule["onExitCodes"]["values"] for rule in rules[1:3]] == [[75, 143], [79]]
    assert {rule["action"] for rule in rules[:3]} == {"Ignore"}
    assert [rule["action"] for rule in rules[3:]] == ([] if restarts else ["FailJob"])
    assert spec["backoffLimit"] == 2 * restarts


def test_names_of_launches_differ_and_are_short_enough_for_hosts() -> None:
    first = asked(name="x" * 42)
    second = replace(first, launch_folder=Path("/code/.flatout/launch/train-20261127T100001Z"))
    assert kubernetes_job.name(first) != kubernetes_job.name(second)
    assert len(f"{kubernetes_job.name(first)}-9999") < 64


# What kubectl says --------------------------------------------------------------------------------


UP: Table = [(["/version"], 0, "{}", "")]
YES: Table = [(["can-i"], 0, "yes\n", "")]
POD = {
    "metadata": {
        "name": "train-0-abc",
        "uid": "u0",
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    },
    "spec": {"nodeName": "gpu-01"},
    "status": {"phase": "Running"},
}


DRY: Table = [(["create", "--dry-run=server"], 0, "created\n", "")]


def bare(**changes: Any) -> LaunchRequest:
    return replace(asked(), gpus=None, **changes)


class TestCheck:
    def test_the_cluster_itself_tries_the_file(self, tool: FakeTool) -> None:
        warned = 'Warning: would violate PodSecurity "restricted:latest"\n'
        tool.answers(UP, YES, [(["create", "--dry-run=server"], 0, "created\n", warned)])
        assert kubernetes.check(bare()).warnings == (
            'would violate PodSecurity "restricted:latest"',
        )

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ("The connection to the server localhost:8080 was refused", "knows no cluster"),
            ('error: context "x" does not exist', "no such context"),
            ("error: You must be logged in to the server (Unauthorized)", "you are not logged in"),
            ("Unable to connect to the server: dial tcp 10.0.0.1: i/o timeout", "does not answer"),
            ("Unable to connect to the server: getting credentials: exec: executable "
             "gke-gcloud-auth-plugin not found", "you are not logged in"),
            ("Unable to connect to the server: tls: failed to verify certificate: x509: "
             "certificate signed by unknown authority", "certificate is not accepted"),
            ("The connection to the server 10.0.0.1:6443 was refused", "does not answer"),
        ],
    )  # fmt: skip
    def test_each_failure_says_what_to_do(self, tool: FakeTool, said: str, message: str) -> None:
        tool.answers([(["/version"], 1, "", f"{said}\n")])
        with pytest.raises(UserError, match=message) as error:
            kubernetes.check(bare())
        assert error.value.next_step

    def test_gpus_are_those_of_the_nodes(self, tool: FakeTool) -> None:
        nodes = [
            {"status": {"allocatable": {"amd.com/gpu": "8"}}},
            {"status": {"allocatable": {"cpu": "4"}}},
            {"status": {"allocatable": {"amd.com/gpu": "16"}}, "spec": {"unschedulable": True}},
        ]
        listed: Table = [(["get", "nodes"], 0, json.dumps({"items": nodes}), "")]
        tool.answers(UP, YES, listed, DRY)
        checked = kubernetes.check(replace(bare(), gpus="all"))
        assert (checked.request.gpus, checked.request.option("gpu-resource")) == (8, "amd.com/gpu")
        assert checked.warnings == (
            "1 node of the cluster now has 8 of amd.com/gpu: it waits until there are 2",
        )

    def test_without_an_image_or_with_too_much_code_nothing_is_asked(
        self, tool: FakeTool, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match="none is named"):
            kubernetes.check(bare(image=""))
        (tmp_path / "train.py").write_bytes(random.Random(0).randbytes(1_200_000))
        packed = PackedCode(tmp_path, ("train.py",), 1_200_000)
        with pytest.raises(UserError, match="a ConfigMap holds"):
            kubernetes.check(bare(packed=packed))
        assert tool.asked == []


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="kubectl is not installed here"):
        kubernetes.check(bare())


def job(folder: Path) -> SubmittedJob:
    return SubmittedJob("kubernetes", "train-1", "train", str(folder), 0.0, 2)


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {
        "name": "node",
        "state": {"waiting": {"reason": reason, "message": message}},
    }


def ended(code: int, at: str, reason: str = "Error") -> dict[str, Any]:
    terminated = {"exitCode": code, "finishedAt": at, "reason": reason}
    return {"name": "node", "state": {"terminated": terminated}}


def pods(*statuses: dict[str, Any]) -> str:
    items = []
    for index, status in enumerate(statuses):
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        metadata = {"name": f"train-1-{index}", "uid": f"u{index}", "annotations": annotations}
        items.append({"metadata": metadata, "spec": {"nodeName": f"gpu-{index}"}, "status": status})
    return json.dumps({"items": items})


NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
PLACE = {"type": "PodScheduled", "status": "False", "message": NO_GPUS}
RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "node", "state": {"running": {}}}],
}
UNPLACED = {"phase": "Pending", "conditions": [PLACE]}
UNPULLED = {
    "phase": "Pending",
    "containerStatuses": [waiting("ImagePullBackOff", "Back-off x:1")],
}
ENDED = {"phase": "Failed", "containerStatuses": [ended(143, "2026-01-01T00:00:01Z")]}
KILLED = {"phase": "Failed", "containerStatuses": [ended(137, "2026-01-01T00:00:02Z", "OOMKilled")]}
LATE = "DeadlineExceeded"
HELD = "it is suspended, by a queue or by a user"


@pytest.mark.parametrize(
    ("conditions", "statuses", "state", "code", "detail"),
    [
        ({}, [RUNNING], "running", None, ""),
        ({}, [UNPLACED], "queued", None, f"node 0: no node can take it: {NO_GPUS}"),
        ({}, [UNPULLED], "queued", None, "node 0: its image cannot be pulled: Back-off x:1"),
        ({"Suspended": {}}, [], "queued", None, HELD),
        ({"Complete": {}}, [{"phase": "Succeeded"}], "ended", 0, ""),
        # Node 1 failed; node 0 was ended because it did.
        ({"Failed": {}}, [ENDED, KILLED], "failed", 137, "node 1 (gpu-1) ended first, OOMKilled"),
        ({"Failed": {"reason": LATE}}, [ENDED], "failed", None, "it reached its time limit"),
    ],
)  # fmt: skip
def test_states(
    tool: FakeTool, tmp_path: Path, conditions: dict[str, Any], statuses: list[dict[str, Any]],
    state: str, code: int | None, detail: str,
) -> None:  # fmt: skip
    listed = [{"type": name, "status": "True", **more} for name, more in conditions.items()]
    document = json.dumps({"status": {"conditions": listed}})
    tool.answers(
        [(["get", "jobs.batch", "train-1"], 0, document, ""), (["pods"], 0, pods(*statuses), "")],
    )
    found = kubernetes.state(job(tmp_path))
    assert (found.state, found.returncode, found.detail) == (state, code, detail)


def test_what_the_cluster_has_forgotten_was_cancelled_here_or_is_unknown(
    tool: FakeTool, tmp_path: Path
) -> None:
    gone = 'Error from server (NotFound): jobs.batch "train-1" not found\n'
    tool.answers([(["get"], 1, "", gone), (["delete"], 0, "deleted\n", "")])
    assert kubernetes.state(job(tmp_path)).state == "unknown"
    kubernetes.cancel(job(tmp_path))
    assert kubernetes.state(job(tmp_path)).state == "cancelled"
    tool.answers([(["get"], 1, "", "Unable to connect to the server: EOF\n")])
    assert kubernetes.state(job(tmp_path)).state == "unknown"


@pytest.mark.slow
def test_a_broken_connection_repeats_no_line_and_loses_none(tool: FakeTool, tmp_path: Path) -> None:
    one = [RUNNING]
    begin, stamp = "2026-01-01T00:00:01.0", "2026-01-01T00:00:02.5"
    first = f"{begin}Z a\n{stamp}Z b\n{stamp}Z c\n"
    again = f"{begin}Z a\n{stamp}Z b\n{stamp}Z c\n{stamp}Z d\n2026-01-01T00:00:03.1Z e\n"
    alive: Table = [(["pods"], 0, pods(*one), ""), (["pod"], 0, json.dumps(POD), "")]
    tool.answers([(["logs", "--since-time"], 0, again, ""), (["logs"], 0, first, "")], alive)
    lines = kubernetes.logs(job(tmp_path))
    found: list[LogLine] = []
    while len(found) < 5:
        line = next(lines)
        if line is not None:
            found.append(line)
            if line.text == "e":  # the pod is over now
                over = json.dumps({**POD, "metadata": {**POD["metadata"], "uid": "other"}})
                tool.answers([(["pods"], 0, pods(*one), ""), (["pod"], 0, over, "")])
    assert [line.text for line in found] == ["a", "b", "c", "d", "e"]
    assert {line.source for line in found} == {"node 0"}
    lines.close()  # type: ignore[attr-defined]


def test_what_was_refused_leaves_no_code_behind(tool: FakeTool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    folder = tmp_path / "launch"
    folder.mkdir()
    request = bare(packed=PackedCode(tmp_path, ("train.py",), 8))
    quota = 'Error from server (Forbidden): jobs.batch "x" is forbidden: exceeded quota: gpus\n'
    tool.answers([
        (["create", "configmap"], 0, "", ""), (["label"], 0, "", ""),
        (["create", "--filename"], 1, "", quota), (["delete"], 0, "", ""),
    ])  # fmt: skip
    with pytest.raises(UserError, match="exceeded quota"):
        kubernetes.submit(request, folder)
    deleted = [words[1] for words in tool.asked if words[0] == "delete"]
    assert f"configmaps/{kubernetes_job.code_map(request)}" in deleted
