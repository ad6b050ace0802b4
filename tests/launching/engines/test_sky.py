"""The task for SkyPilot, and what sky's answers become; the real one reads it where it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.launching.engines import sky
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest, PackedCode, SubmittedJob
from launching.fake_tool import FakeTool

REQUEST = LaunchRequest(
    "sky",
    ("train.py", "--lr", "1e-3"),
    "train",
    Path("/code"),
    nodes=2,
    gpus=8,
    variables=(("A", "yes"), ("B", "a: b")),
    packed=PackedCode(Path("/code"), ("train.py",), 3),
    options=(("gpu", "H100"),),
    launch_folder=Path("/code/.flatout/launch/train-1"),
)


def asked(options: dict[str, str] | None = None, **changes: Any) -> LaunchRequest:
    found = {**dict(REQUEST.options), **(options or {})}
    return replace(REQUEST, options=tuple(found.items()), **changes)


EXAMPLES = [
    asked(),
    asked({"spot": "yes", "infra": "aws/us-east-1", "disk": "500"}, restarts=2, time_s=3600.0),
    asked({"infra": "k8s", "mount": "s3://my-runs:/runs"}, image="registry/me/training:1"),
    asked({"after": "keep", "cpus": "16+", "memory": "64+", "setup": "pip install x"}),
    asked(gpus=None, ranks=2, nodes=1, lock="# Python 3.13.1 on Linux\n"),
]


def task(request: LaunchRequest) -> dict[str, Any]:
    [file] = sky.files(request)
    assert file.path == "task.yaml"
    found = yaml.safe_load(file.text)
    assert isinstance(found, dict)
    return found


def test_the_task_says_what_was_asked() -> None:
    found = task(REQUEST)
    assert found["num_nodes"] == 2
    assert found["resources"]["accelerators"] == "H100:8"
    assert found["resources"]["autostop"] == {"idle_minutes": 10, "down": False}
    assert found["envs"] == {"A": "yes", "B": "a: b"}
    assert found["workdir"] == "/code/.flatout/launch/train-1/code"
    assert "exec flatout run --nodes auto --gpus 8 train.py --lr 1e-3\n" in found["run"]
    assert "pip install --quiet torch\n" in found["setup"]


def test_machines_that_may_be_taken_away_are_replaced() -> None:
    found = task(asked({"spot": "yes"}, restarts=2, time_s=3600.0))
    assert found["resources"]["use_spot"] is True
    assert found["resources"]["job_recovery"] == {
        "max_restarts_on_errors": 2,
        "recover_on_exit_codes": [75, 143],
    }
    assert "autostop" not in found["resources"]
    # The managed job counts, not flatout on the node.
    assert "--restarts" not in found["run"]
    assert "timeout --kill-after=120 3600 flatout run" in found["run"]


def test_the_environment_is_that_of_requirements_or_the_users_line() -> None:
    packed = PackedCode(Path("/code"), ("requirements.txt", "train.py"), 9)
    assert "install --quiet -r requirements.txt\n" in task(asked(packed=packed))["setup"]
    assert "\npip install x\n" in task(EXAMPLES[3])["setup"]
    assert "--python 3.13 " in task(EXAMPLES[4])["setup"]
    assert "--python 3.12 " in task(asked(lock="# Python 3.10.1 on Linux\n"))["setup"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(REQUEST, options=()), "no GPU model is named"),
        (asked(gpus="all"), "cannot be counted"),
        (asked({"after": "never"}), "not one of stop, down, keep"),
        (asked({"spot": "maybe"}), "neither yes nor no"),
        (asked({"mount": "/runs"}), "no BUCKET:/PATH"),
    ],
)
def test_what_needs_no_cloud_is_seen_first(
    tool: FakeTool, request_: LaunchRequest, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        sky.check(request_)
    assert error.value.next_step
    assert tool.asked == []


# What sky says ------------------------------------------------------------------------------------


STARTED = "\x1b[2mFailed to connect to SkyPilot API server. Starting a local server.\x1b[0m\n"


def test_without_a_cloud_nothing_is_submitted(tool: FakeTool) -> None:
    tool.answers([(["check"], 0, STARTED + '{\n  "default": {}\n}\n', "")])
    with pytest.raises(UserError, match="finds no cloud"):
        sky.check(REQUEST)


def test_without_sky(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sky is not installed here"):
        sky.check(REQUEST)


@pytest.mark.parametrize("managed", [False, True])
def test_code_and_task_are_handed_over(tool: FakeTool, tmp_path: Path, managed: bool) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / ".gitignore").write_text("*\n")
    folder = tmp_path / "train-20261127T100000Z"
    folder.mkdir()
    packed = PackedCode(tmp_path, ("train.py",), 8)
    tool.answers([(["launch"], 0, "Submitted\n", "")])
    job = sky.submit(asked(packed=packed, restarts=int(managed)), folder)
    assert {path.name for path in (folder / "code").iterdir()} == {"train.py", ".skyignore"}
    [words] = tool.asked
    assert (words[0] == "jobs") is managed
    assert job.id == "train-20261127t100000z"
    assert job.id in words
    assert {"--detach-run", "--yes", str(folder / "task.yaml")} <= set(words)


def job(managed: bool = False) -> SubmittedJob:
    return SubmittedJob("sky", "train-1", "train", "/x", 0.0, 2, {"managed": "yes" * managed})


@pytest.mark.parametrize(
    ("status", "state", "detail"),
    [
        ("SETTING_UP", "queued", "its environment is installed"),
        ("RUNNING", "running", ""),
        ("SUCCEEDED", "ended", ""),
        ("FAILED", "failed", ""),
        ("FAILED_SETUP", "failed", "FAILED_SETUP"),
        ("CANCELLED", "cancelled", ""),
    ],
)
def test_states(tool: FakeTool, status: str, state: str, detail: str) -> None:
    rows = {"train-1": [{"job_id": 1, "status": "FAILED"}, {"job_id": 2, "status": status}]}
    tool.answers([(["queue", "train-1"], 0, json.dumps(rows), "")])
    found = sky.state(job())
    assert (found.state, found.detail) == (state, detail)


def test_before_there_are_machines(tool: FakeTool) -> None:
    empty = (["queue"], 0, "{}", "")
    cluster = {
        "name": "train-1",
        "status": "INIT",
        "init_status_reason": "no capacity in us-east-1",
    }
    tool.answers([empty, (["status", "train-1"], 0, json.dumps([cluster]), "")])
    assert sky.state(job()).detail == "its machines: no capacity in us-east-1"
    row = {"cluster_name": "train-1", "status": "FAILED", "request_id": "abc"}
    gone = (["status", "train-1"], 0, "[]", "")
    tool.answers([empty, (["api", "status"], 0, json.dumps([row]), ""), gone])
    found = sky.state(job())
    assert (found.state, found.detail) == (
        "failed",
        "its machines could not be obtained: sky api logs abc",
    )
    tool.answers([])
    assert sky.state(job()).state == "unknown"


@pytest.mark.cluster
def test_the_real_one_reads_the_tasks(tmp_path: Path) -> None:
    program = shutil.which("sky") or shutil.which("sky", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("sky is not installed: make cluster installs it")
    for number, request in enumerate(EXAMPLES):
        folder = tmp_path / str(number)
        (folder / "code").mkdir(parents=True)
        [file] = sky.files(replace(request, launch_folder=folder))
        (folder / file.path).write_text(file.text)
    code = (
        "import sys, sky\n"
        "for path in sys.argv[1:]:\n"
        "    task = sky.Task.from_yaml(path)\n"
        "    print(task.num_nodes, *[str(r.accelerators) for r in task.resources])\n"
    )
    paths = [str(tmp_path / str(number) / "task.yaml") for number in range(len(EXAMPLES))]
    python = Path(program).resolve().parent / "python"
    python = python if python.exists() else Path(program).parent / "python"
    done = subprocess.run([python, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    h100 = "{'H100': 8}"
    assert done.stdout.splitlines() == [
        f"2 {h100}",
        f"2 {h100}",
        f"2 {h100}",
        f"2 {h100}",
        "1 None",
    ]


def test_a_flatout_that_no_index_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that cannot install it would fail in their setup, at their price."""
    monkeypatch.setattr(sky.contract, "only_here", lambda: "file:///wheels/flatout.whl")
    told = "flatout was installed from file:///wheels/flatout.whl here"
    assert any(note.startswith(told) for note in sky.costs(asked()).notes)
    for answered in (asked({"setup": "pip install x"}), asked(image="registry/me/training:1")):
        assert not any(note.startswith(told) for note in sky.costs(answered).notes)
    monkeypatch.setattr(sky.contract, "only_here", lambda: None)
    assert not any(note.startswith(told) for note in sky.costs(asked()).notes)
