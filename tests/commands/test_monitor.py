"""flatout monitor, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.called import process
from flatout.nouns.frame import Frame
from flatout.watching.recording import HistoryRecording
from reporting.monitor import frames


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
def test_one_frame(tmp_path: Path) -> None:
    done = process("monitor", "--once", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("flatout monitor  ")
    document = json.loads(process("monitor", "--json", folder=tmp_path).stdout)
    assert document["schema"] == "flatout.monitor/1"
    assert document["machines"][0]["cpu_cores"] is not None


@pytest.mark.slow
def test_a_replay(run_folder: Path, tmp_path: Path) -> None:
    done = process("monitor", "--replay", str(run_folder), folder=tmp_path)
    assert done.returncode == 0
    assert "train.py --epochs 0" in done.stdout
    assert "WAIT001" in done.stdout
    lines = process(
        "monitor", "--json", "--follow", "--replay", str(run_folder), folder=tmp_path
    ).stdout.splitlines()
    assert [json.loads(line)["jobs"][0]["step"] for line in lines] == list(range(5))
