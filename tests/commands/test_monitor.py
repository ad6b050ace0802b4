"""flatout monitor, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.nouns.frame import Frame
from flatout.watching.recording import HistoryRecording
from reporting.monitor import frames


def flatout(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ".flatout/runs/20261124T000000Z-run"
    folder.mkdir(parents=True)
    recording = HistoryRecording(folder)
    for second in range(5):
        job = frames.job(step=second, loss=2.0 - second / 10)
        time_s = frames.TIME_S + second
        recording.add(Frame(time_s, (frames.machine(gpus=2),), (job,), (frames.alert(),)))
    return folder


@pytest.mark.slow
def test_once(tmp_path: Path) -> None:
    done = flatout("monitor", "--once", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("flatout monitor  ")
    assert "cores" in done.stdout


@pytest.mark.slow
def test_json(tmp_path: Path) -> None:
    done = flatout("monitor", "--json", folder=tmp_path)
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.monitor/1"
    assert document["machines"][0]["cpu_cores"] is not None


@pytest.mark.slow
def test_a_replay(run_folder: Path, tmp_path: Path) -> None:
    done = flatout("monitor", "--replay", str(run_folder), folder=tmp_path)
    assert done.returncode == 0
    assert "train.py --epochs 0" in done.stdout
    assert "WAIT001" in done.stdout
    lines = flatout(
        "monitor", "--json", "--follow", "--replay", str(run_folder), folder=tmp_path
    ).stdout.splitlines()
    assert [json.loads(line)["jobs"][0]["step"] for line in lines] == list(range(5))
