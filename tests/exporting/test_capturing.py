"""A script's model as the host gets it: after a run to its end, or from a trial."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
from flatout.exporting import capturing
from flatout.nouns.captured import Capture, CaptureRequest
from flatout.nouns.errors import UserError
from flatout.running.one.command import resolve

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(160, 8)
Y = X[:, :3].argmax(1)
training = DataLoader(TensorDataset(X[:96], Y[:96]), batch_size=32)
held_out = DataLoader(TensorDataset(X[96:], Y[96:]), batch_size=32)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in training:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out)
    print("accuracy", right / 64)
    model.train()
    torch.save({"model": nn.DataParallel(model).state_dict(), "epoch": epoch}, "last.pt")
"""


def warned(line: str) -> None:
    raise AssertionError(line)


def captured(request: CaptureRequest, script: str = "train.py") -> Capture:
    python = forked.python() if "torch" in Path(script).read_text() else sys.executable
    return capturing.capture(resolve([script], None, python), request, warned)


def facts(found: Capture) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((found.folder / "capture.json").read_text())
    return read


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.slow
def test_trained_as_written_then_the_weights_of_its_checkpoint(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = captured(CaptureRequest())
    told = float(capfd.readouterr().out.split()[-1])
    assert (found.model, found.source, found.samples) == ("Sequential", "evaluation", 2)
    trained = facts(found)
    assert trained["weights"] == "trained"
    assert trained["metric"]["value"] == pytest.approx(told)
    kept = folder / "best.pt"
    (folder / "last.pt").rename(kept)
    found = captured(CaptureRequest(weights="best.pt"))
    assert not (folder / "last.pt").exists()  # a trial: nothing is written
    again = facts(found)
    assert again["weights"] == str(kept)
    assert again["metric"]["value"] == pytest.approx(told)
    with pytest.raises(UserError, match="has no entry 'ema'") as refused:
        captured(CaptureRequest(weights="best.pt#ema"))
    assert "model, epoch" in refused.value.next_step


@pytest.mark.slow
def test_a_checkpoint_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UserError, match=r"there is no checkpoint gone\.pt"):
        captured(CaptureRequest(weights="gone.pt"))
    assert not (folder / ".flatout").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print(1)", "never imported torch"),
        ("import torch", "called no model"),
        ("import os, torch; os._exit(0)", "before its model could be taken"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
    ],
)
@pytest.mark.slow
def test_scripts_without_a_capture(code: str, says: str, folder: Path) -> None:
    (folder / "other.py").write_text(code)
    with pytest.raises(UserError, match=says) as refused:
        captured(CaptureRequest(), "other.py")
    assert refused.value.exit_code == 1
    assert refused.value.next_step
