"""`flatout launch` where no cluster is needed; with one: tests/launching/engines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from commands.called import Flatout
from flatout.launching import engines
from flatout.nouns.launched import JobState, LogLine, SubmittedJob


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print('trains')\n")
    monkeypatch.setenv("PATH", "/nowhere")  # no engine is installed
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_prints_the_file_and_the_costs(flat: Flatout, code: Path) -> None:
    words = ("--dry-run", "--nodes", "2", "--gpus", "8", "--time", "4h", "--env", "A=it's")
    ended = flat("launch", "slurm", *words, "train.py", "--gpus", "mine")
    assert ended.returncode == 0
    assert "2 nodes, 16 GPUs, at most 4 h 00 min: 64 GPU hours" in ended.stderr
    assert ended.stdout.startswith("#!/bin/bash\n")
    assert "run --nodes auto --gpus 8 train.py --gpus mine &" in ended.stdout
    assert "export A='it'\"'\"'s'" in ended.stdout
    told = json.loads(flat("launch", "slurm", *words, "--json", "train.py").stdout)
    assert (told["schema"], told["gpu_hours"], told["job"]) == ("flatout.launch/1", 64.0, None)
    assert list(told["files"]) == ["job.sbatch"]
    assert not (code / ".flatout").exists()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Slurm as a list of what it was asked: it takes every job, which then fails."""
    slurm, asked = engines.load("slurm"), []

    def submit(request, folder: Path) -> SubmittedJob:  # type: ignore[no-untyped-def]
        asked.append("submit")
        return SubmittedJob("slurm", "7", request.name, str(folder), time.time(), request.nodes)

    from flatout.nouns.launched import CheckedLaunch

    monkeypatch.setattr(slurm, "check", lambda request: CheckedLaunch(request))
    monkeypatch.setattr(slurm, "submit", submit)
    monkeypatch.setattr(slurm, "cancel", lambda job: asked.append("cancel"))
    failed = JobState("failed", "node2 ended first", 3, ("node1", "node2"), "node 1")
    monkeypatch.setattr(slurm, "state", lambda job: failed)
    lines = [LogLine("node 0", "10%\r20%\x1b[31m"), LogLine("node 1", "ValueError: bad"), None]
    monkeypatch.setattr(slurm, "logs", lambda job: iter(lines))
    return asked


def test_nothing_is_submitted_where_nobody_can_agree(
    flat: Flatout, code: Path, cluster: list[str]
) -> None:
    ended = flat("launch", "slurm", "train.py", stdin="y\n")
    assert (ended.returncode, cluster) == (2, [])
    assert "--yes" in ended.stderr
    assert not (code / ".flatout").exists()


@pytest.mark.slow
def test_a_job_is_followed_to_its_end_with_its_exit_code(
    flat: Flatout, code: Path, cluster: list[str]
) -> None:
    ended = flat("launch", "slurm", "--yes", "--nodes", "2", "train.py")
    assert (ended.returncode, cluster) == (3, ["submit"])
    assert ended.stdout == "[node 0] 20%\n[node 1] ValueError: bad\n"
    assert "job 7 has failed (exit code 3): node2 ended first" in ended.stderr
    assert "flatout: error: node 1: ValueError: bad" in ended.stderr
    again = flat("launch", "--follow", "train")
    assert (again.returncode, again.stdout) == (3, ended.stdout)
    assert "has failed" in flat("launch", "--list").stdout
    assert flat("launch", "--cancel", "last").returncode == 0
    assert cluster == ["submit", "cancel"]


@pytest.mark.slow
def test_json_has_stdout_to_itself(flat: Flatout, cluster: list[str]) -> None:
    ended = flat("launch", "slurm", "--yes", "--json", "train.py")
    told = json.loads(ended.stdout)
    assert (told["state"], told["returncode"]) == ("failed", 3)
    assert told["failure"]["source"] == "node 1"
    assert "[node 1] ValueError: bad" in ended.stderr
    begun = json.loads(flat("launch", "slurm", "--yes", "--json", "--no-follow", "train.py").stdout)
    assert (begun["job"]["id"], begun["state"]) == ("7", None)
