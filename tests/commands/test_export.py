"""`flatout export` as a user calls it, from a capture on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import exported
import forked
from commands.called import Flatout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "export needs a script"),
        (["--for", "beauty", "train.py"], "--for 'beauty' is not a goal"),
        (["--only", "onxruntime", "train.py"], "there is no backend 'onxruntime'"),
        (["--allow", "int1", "train.py"], "--allow 'int1' is not known"),
        (["--limit", "soon", "train.py"], "--limit 'soon' is not a time"),
        (["--capture", "nowhere"], "nowhere is not a captured model"),
        (["--capture", "nowhere", "train.py"], "--capture runs no script"),
        (["--out", "train.py", "--capture", "nowhere"], "train.py exists and is no folder"),
    ],
)
def test_wrong_usage(flat: Flatout, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(9)", encoding="utf-8")
    done = flat("export", *words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}


@pytest.mark.thorough
@pytest.mark.slow
def test_from_a_capture(flat: Flatout, tmp_path: Path) -> None:
    exported.capture(tmp_path / "capture", exported.small_cnn(), exported.images(32, 7))
    words = ["export", "--capture", "capture", "--only", "eager", "--threads", "1"]
    words += ["--python", forked.python()]
    done = flat(*words, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "flatout.export/1"
    assert found["chosen"] == "eager"
    assert {path.name for path in (tmp_path / "exported").iterdir()} >= {
        "load.py",
        "manifest.json",
        "model.pt2",
    }
    assert "39 samples" in done.stdout
    (tmp_path / "exported" / "mine.txt").touch()
    again = flat(*words, folder=tmp_path)
    assert again.returncode == 2
    assert "mine.txt" in again.stderr
