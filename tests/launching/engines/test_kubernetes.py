"""The files for Kubernetes, and what kubectl's answers become."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.launching import kubernetes_jobs, kubernetes_pod
from flatout.launching.engines import kubernetes
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest, LogLine, PackedCode, SubmittedJob

KINDS = ("job", "jobset", "trainjob", "torch-distributed")
FAKE = Path(__file__).parent.parent / "fake_kubectl.py"
Table = list[tuple[list[str], int, str, str]]


def asked(kind: str = "job", **changes: Any) -> LaunchRequest:
    """A request as it is after its check."""
    options = {"kind": "trainjob" if kind == "torch-distributed" else kind}
    if kind == "torch-distributed":
        options["runtime"] = kind
    options |= changes.pop("options", {})
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
        options=tuple(options.items()),
        launch_folder=Path("/code/.flatout/launch/train-20261127T100000Z"),
    )
    return replace(request, **changes)


def documents(request: LaunchRequest) -> list[dict[str, Any]]:
    [file] = kubernetes.files(request)
    assert file.path == "job.yaml"
    return list(yaml.safe_load_all(file.text))


def pod(request: LaunchRequest) -> dict[str, Any]:
    """The pod's spec, wherever the kind has it."""
    found = [*nested(documents(request), "terminationGracePeriodSeconds")]
    assert len(found) == 1
    return found[0]


def nested(value: Any, key: str) -> list[dict[str, Any]]:
    """All mappings that have the key."""
    if isinstance(value, dict):
        own = [value] if key in value else []
        return [*own, *(found for inner in value.values() for found in nested(inner, key))]
    if isinstance(value, list):
        return [found for inner in value for found in nested(inner, key)]
    return []


def lost(value: Any, again: Any, path: str = "") -> list[str]:
    """Places of `value` that are not the same in `again`."""
    if isinstance(value, dict) and isinstance(again, dict):
        inner = [lost(value[key], again.get(key), f"{path}/{key}") for key in value]
        return [place for places in inner for place in places]
    if isinstance(value, list) and isinstance(again, list) and len(value) == len(again):
        inner = [
            lost(*pair, f"{path}/{index}")
            for index, pair in enumerate(zip(value, again, strict=True))
        ]
        return [place for places in inner for place in places]
    return [] if value == again else [path]


# Files --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_engines_own_models_know_every_field(kind: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    known = {
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "JobSet": models.JobsetV1alpha2JobSet,
        "Job": models.IoK8sApiBatchV1Job,
        "Service": models.IoK8sApiCoreV1Service,
    }
    options = {"claim": "data:/data", "memory": "64Gi", "cpu": "16", "shm": "8Gi",
               "pull-secret": "s", "service-account": "a", "node-selector": "x/y=z"}  # fmt: skip
    for document in documents(asked(kind, queue="team", restarts=2, options=options)):
        read = known[document["kind"]].from_dict(document)
        # What a model does not know it drops; what is not said it may add.
        assert lost(document, json.loads(read.to_json())) == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_asks_for_what_was_asked(kind: str) -> None:
    request = asked(kind, options={"claim": "data:/data,runs:/runs"})
    made = documents(request)
    assert {document["metadata"]["name"] for document in made} == {kubernetes_pod.name(request)}
    [limits] = nested(made, "nvidia.com/gpu")
    assert limits == {"nvidia.com/gpu": 8}
    counts = {value[key] for key in ("numNodes", "completions") for value in nested(made, key)}
    assert counts == {2}
    assert {found["activeDeadlineSeconds"] for found in nested(made, "activeDeadlineSeconds")} == {
        3600
    }
    volumes = {volume["name"]: volume for volume in pod(request)["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory"}
    assert volumes["claim-1"]["persistentVolumeClaim"] == {"claimName": "runs"}
    paths = [
        mount["mountPath"]
        for found in nested(made, "volumeMounts")
        for mount in found["volumeMounts"]
    ]
    assert {"/dev/shm", "/data", "/runs", "/flatout/code"} <= set(paths)
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_replaces_nothing_in_script_or_variables(kind: str) -> None:
    [args] = nested(documents(asked(kind)), "args")
    assert "'$$(HOME) it'\"'\"'s'" in args["args"][0]
    assert "$(" not in args["args"][0].replace("$$(", "")
    values = {entry["name"]: entry.get("value") for entry in args["env"]}
    assert values["NAME"] == "$$(HOME): yes"


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize("restarts", [0, 3])
def test_preemption_restarts_and_an_error_only_where_asked(kind: str, restarts: int) -> None:
    made = documents(asked(kind, restarts=restarts))
    [spec] = nested(made, "podFailurePolicy")
    rules = spec["podFailurePolicy"]["rules"]
    expected = "Ignore" if kind == "job" else "FailJob"
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert rules[1]["onExitCodes"]["values"] == [75, 143]
    assert {rule["action"] for rule in rules[:2]} == {expected}
    assert (rules[2]["onExitCodes"]["values"], rules[2]["action"]) == ([79], "Ignore")
    if kind == "job":
        assert spec["backoffLimit"] == 2 * restarts
        assert [rule["action"] for rule in rules[3:]] == ([] if restarts else ["FailJob"])
        return
    assert spec["backoffLimit"] == 0
    [policy] = nested(made, "maxRestarts")
    assert policy["maxRestarts"] == restarts
    assert policy["rules"][0]["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


@pytest.mark.parametrize(("kind", "leader"), [("job", "{}-0.{}"), ("jobset", "{}-node-0-0.{}")])
def test_pods_find_the_first_one_by_name(kind: str, leader: str) -> None:
    name = kubernetes_pod.name(asked(kind))
    [container] = nested(documents(asked(kind)), "args")
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert values["FLATOUT_LEADER"] == f"{leader.format(name, name)}:29500"
    assert values["FLATOUT_NODES"] == "2"


def test_names_of_launches_differ_and_are_short_enough_for_hosts() -> None:
    first = asked(name="x" * 42)
    second = replace(first, launch_folder=Path("/code/.flatout/launch/train-20261127T100001Z"))
    assert kubernetes_pod.name(first) != kubernetes_pod.name(second)
    assert len(f"{kubernetes_pod.name(first)}-node-0-0") < 64


# The script in a pod ------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
@pytest.mark.parametrize(
    ("restarts", "codes", "ended"),
    [
        (0, [3, 0], [3, 3]),  # an error: not again, whatever it would be
        (0, [143, 75, 79, 0], [143, 75, 79, 0]),  # preempted, and another node was
        (1, [3, 4, 0], [3, 4, 4]),
        (0, [0], [0]),
    ],
)
def test_in_a_runtime_that_restarts_anything_the_script_counts(
    tmp_path: Path, restarts: int, codes: list[int], ended: list[int]
) -> None:
    request = asked("torch-distributed", restarts=restarts, options={"code": "image"})
    text = kubernetes_pod.script(request, restarted_in_place=True).replace("$$(", "$(")
    text = text.replace(kubernetes_pod.STATE, str(tmp_path))
    fake = tmp_path / "flatout"
    fake.write_text(f"#!/bin/sh\nread code <{tmp_path}/next\nexit $code\n")
    fake.chmod(0o755)
    found = []
    for code in codes:
        (tmp_path / "next").write_text(f"{code}\n")
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
        found.append(subprocess.run(["sh", "-c", text], env=env, check=False).returncode)
    assert found == ended


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
def test_the_script_hands_sigterm_on(tmp_path: Path) -> None:
    request = asked("torch-distributed", options={"code": "image"})
    text = kubernetes_pod.script(request, restarted_in_place=True).replace("$$(", "$(")
    text = text.replace(kubernetes_pod.STATE, str(tmp_path))
    fake = tmp_path / "flatout"
    fake.write_text(
        "#!/bin/sh\ntrap 'echo saved; exit 75' TERM\necho ready\nwhile :; do sleep 0.1; done\n"
    )
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["sh", "-c", text]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.communicate(timeout=120)[0] == "saved\n"
    assert process.returncode == 75


# What kubectl says --------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test writes the answers of the kubectl on the path."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_KUBECTL", str(tmp_path / "table.json"))
    return tmp_path / "table.json"


UP: Table = [(["/version"], 0, "{}", "")]
ABSENT = "Error from server (NotFound): the server could not find the requested resource\n"
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


def write(table: Path, *entries: Table) -> None:
    table.write_text(json.dumps([entry for part in entries for entry in part]))


def calls(table: Path) -> list[list[str]]:
    return [json.loads(line)[0] for line in table.with_suffix(".asked").read_text().splitlines()]


def bare(**changes: Any) -> LaunchRequest:
    return replace(asked(), gpus=None, options=(), **changes)


@pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shell script")
class TestCheck:
    @pytest.mark.parametrize(
        ("absent", "kind"),
        [((), "trainjob"), (("trainer",), "jobset"), (("trainer", "jobset"), "job")],
    )
    def test_the_best_kind_that_is_there_is_taken(
        self, table: Path, absent: tuple[str, ...], kind: str
    ) -> None:
        groups = {"trainer": kubernetes_jobs.TRAINER, "jobset": kubernetes_jobs.SETS}
        there: Table = [
            ([f"/apis/{group}"], int(name in absent), "{}", ABSENT if name in absent else "")
            for name, group in groups.items()
        ]
        warned = 'Warning: would violate PodSecurity "restricted:latest"\n'
        dry: Table = [(["create", "--dry-run=server"], 0, "created\n", warned)]
        write(table, UP, there, YES, dry)
        checked = kubernetes.check(bare())
        assert checked.request.option("kind") == kind
        assert checked.request.option("runtime") == ("own" if kind == "trainjob" else "")
        assert checked.warnings == ('would violate PodSecurity "restricted:latest"',)

    def test_where_runtimes_may_not_be_made_the_clusters_own_is_taken(self, table: Path) -> None:
        groups: Table = [(["--raw"], 0, "{}", "")]
        no: Table = [(["can-i", "trainingruntimes.trainer.kubeflow.org"], 1, "no\n", "")]
        runtime: Table = [(["get", "torch-distributed"], 0, "it\n", "")]
        dry: Table = [(["create", "--dry-run=server"], 0, "created\n", "")]
        write(table, UP, groups, no, YES, runtime, dry)
        checked = kubernetes.check(bare())
        assert checked.request.option("runtime") == "torch-distributed"
        assert any("runtime torch-distributed" in text for text in checked.warnings)

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
    def test_each_failure_says_what_to_do(self, table: Path, said: str, message: str) -> None:
        write(table, [(["/version"], 1, "", f"{said}\n")])
        with pytest.raises(UserError, match=message) as error:
            kubernetes.check(bare())
        assert error.value.next_step

    def test_gpus_are_those_of_the_nodes(self, table: Path) -> None:
        nodes = [
            {"status": {"allocatable": {"amd.com/gpu": "8"}}},
            {"status": {"allocatable": {"cpu": "4"}}},
            {"status": {"allocatable": {"amd.com/gpu": "16"}}, "spec": {"unschedulable": True}},
        ]
        listed: Table = [(["get", "nodes"], 0, json.dumps({"items": nodes}), "")]
        absent: Table = [(["--raw"], 1, "", ABSENT)]
        dry: Table = [(["create", "--dry-run=server"], 0, "created\n", "")]
        write(table, UP, absent, YES, listed, dry)
        checked = kubernetes.check(replace(bare(), gpus="all"))
        assert (checked.request.gpus, checked.request.option("gpu-resource")) == (8, "amd.com/gpu")
        assert checked.warnings == (
            "1 node of the cluster now has 8 of amd.com/gpu: it waits until there are 2",
        )

    def test_without_an_image_or_with_too_much_code_nothing_is_asked(
        self, table: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match="none is named"):
            kubernetes.check(bare(image=""))
        import random

        (tmp_path / "train.py").write_bytes(random.Random(0).randbytes(1_200_000))
        packed = PackedCode(tmp_path, ("train.py",), 1_200_000)
        with pytest.raises(UserError, match="a ConfigMap holds"):
            kubernetes.check(bare(packed=packed))
        assert not table.with_suffix(".asked").exists()


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="kubectl is not installed here"):
        kubernetes.check(bare())


def job(folder: Path, kind: str = "job") -> SubmittedJob:
    return SubmittedJob("kubernetes", "train-1", "train", str(folder), 0.0, 2, {"kind": kind})


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {
        "name": "node",
        "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    }


def ended(code: int, at: str, reason: str = "Error") -> dict[str, Any]:
    terminated = {"exitCode": code, "finishedAt": at, "reason": reason}
    return {"name": "node", "restartCount": 0, "state": {"terminated": terminated}}


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
    "containerStatuses": [{"name": "node", "restartCount": 0, "state": {"running": {}}}],
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


@pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shell script")
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
    table: Path, tmp_path: Path, conditions: dict[str, Any], statuses: list[dict[str, Any]],
    state: str, code: int | None, detail: str,
) -> None:  # fmt: skip
    listed = [{"type": name, "status": "True", **more} for name, more in conditions.items()]
    document = json.dumps({"status": {"conditions": listed}})
    write(
        table,
        [(["get", "jobs.batch", "train-1"], 0, document, ""), (["pods"], 0, pods(*statuses), "")],
    )
    found = kubernetes.state(job(tmp_path))
    assert (found.state, found.returncode, found.detail) == (state, code, detail)


@pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shell script")
def test_what_the_cluster_has_forgotten_was_cancelled_here_or_is_unknown(
    table: Path, tmp_path: Path
) -> None:
    gone = 'Error from server (NotFound): jobs.batch "train-1" not found\n'
    write(table, [(["get"], 1, "", gone), (["delete"], 0, "deleted\n", "")])
    assert kubernetes.state(job(tmp_path)).state == "unknown"
    kubernetes.cancel(job(tmp_path))
    assert kubernetes.state(job(tmp_path)).state == "cancelled"
    write(table, [(["get"], 1, "", "Unable to connect to the server: EOF\n")])
    assert kubernetes.state(job(tmp_path)).state == "unknown"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shell script")
def test_a_broken_connection_repeats_no_line_and_loses_none(table: Path, tmp_path: Path) -> None:
    one = [RUNNING]
    begin, stamp = "2026-01-01T00:00:01.0", "2026-01-01T00:00:02.5"
    first = f"{begin}Z a\n{stamp}Z b\n{stamp}Z c\n"
    again = f"{begin}Z a\n{stamp}Z b\n{stamp}Z c\n{stamp}Z d\n2026-01-01T00:00:03.1Z e\n"
    alive: Table = [(["pods"], 0, pods(*one), ""), (["pod"], 0, json.dumps(POD), "")]
    write(table, [(["logs", "--since-time"], 0, again, ""), (["logs"], 0, first, "")], alive)
    lines = kubernetes.logs(job(tmp_path))
    found: list[LogLine] = []
    while len(found) < 5:
        line = next(lines)
        if line is not None:
            found.append(line)
            if line.text == "e":  # the pod is over now
                over = json.dumps({**POD, "metadata": {**POD["metadata"], "uid": "other"}})
                write(table, [(["pods"], 0, pods(*one), ""), (["pod"], 0, over, "")])
    assert [line.text for line in found] == ["a", "b", "c", "d", "e"]
    assert {line.source for line in found} == {"node 0"}
    lines.close()  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shell script")
def test_what_was_refused_leaves_no_code_behind(table: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    folder = tmp_path / "launch"
    folder.mkdir()
    request = replace(
        bare(), packed=PackedCode(tmp_path, ("train.py",), 8), options=(("kind", "job"),)
    )
    quota = 'Error from server (Forbidden): jobs.batch "x" is forbidden: exceeded quota: gpus\n'
    write(table, [
        (["create", "configmap"], 0, "", ""), (["label"], 0, "", ""),
        (["create", "--filename"], 1, "", quota), (["delete"], 0, "", ""),
    ])  # fmt: skip
    with pytest.raises(UserError, match="exceeded quota"):
        kubernetes.submit(request, folder)
    deleted = [words[1] for words in calls(table) if words[0] == "delete"]
    assert f"configmaps/{kubernetes_pod.code_map(request)}" in deleted
