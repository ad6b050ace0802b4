"""`flatout run --export`: the run is as without, and a plan's boosts are no part of the model."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import exported

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8 * 64, 5)
    def forward(self, images):
        return self.head(self.drop(self.body(images).flatten(1)))

def main():
    torch.manual_seed(0)
    images = torch.randn(400, 3, 8, 8)
    labels = images.mean((2, 3)).argmax(1)
    training = DataLoader(TensorDataset(images[:320], labels[:320]), batch_size=8, shuffle=True)
    held_out = DataLoader(TensorDataset(images[320:], labels[320:]), batch_size=32)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in training:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out)
    print("accuracy", right / 80)
    torch.save(model.state_dict(), "weights.pt")
    sys.exit(int(sys.argv[1]))

if __name__ == "__main__":
    main()
"""
PLAN = """
version = 1
[boosts.channels-last]
[boosts.fused-optimizer]
[boosts.fast-dropout]
[boosts.bf16-autocast]
"""
INSIDE = "version = 1\n[boosts.channels-last]\n[boosts.cpu-bf16]\n"
COMPILED = PLAN + "[boosts.compile]\n"
SURE = "channels-last"
"""The boost that takes hold on every machine."""


@dataclass(frozen=True)
class RunAndExport:
    """A run with `--export` and the same one without."""

    folder: Path
    plain: subprocess.CompletedProcess[str]
    export: subprocess.CompletedProcess[str]

    @property
    def capture(self) -> Path:
        (facts,) = self.folder.glob(".flatout/runs/*/capture-*/capture.json")
        return facts.parent


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return exported.quick(folder, "run", *words)


def both(folder: Path, plan: str) -> RunAndExport:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "flatout.toml").write_text(plan)
    plain = ran(folder, "train.py", "0")
    return RunAndExport(folder, plain, ran(folder, "--export", "train.py", "0"))


def own_outputs(folder: Path, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the script's model gives with the weights that the script has saved."""
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(SCRIPT, "train.py", "exec"), names)
    model = names["Net"]().eval()
    model.load_state_dict(torch.load(folder / "weights.pt"))
    with torch.no_grad():
        return [model(x) for x in inputs]


@pytest.fixture(
    scope="module",
    params=[
        "rounding",
        pytest.param("inside", marks=pytest.mark.thorough),
        pytest.param("compiled", marks=pytest.mark.thorough),
    ],
)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunAndExport:
    plans = {"rounding": PLAN, "inside": INSIDE, "compiled": COMPILED}
    return both(tmp_path_factory.mktemp(request.param), plans[request.param])


def test_the_run_is_as_without_and_the_trained_model_is_exported(done: RunAndExport) -> None:
    # the scripts output and exit code are those without
    assert (done.plain.returncode, done.export.returncode) == (0, 0), done.export.stderr
    assert done.export.stdout == done.plain.stdout
    assert done.plain.stdout.count("loss") == 40
    own = {"train.py", "flatout.toml", "weights.pt", "flatout.toml.lock"}
    assert {path.name for path in done.folder.iterdir()} - own <= {".flatout", "exported"}
    # what engaged is told
    (summary,) = (line for line in done.export.stderr.splitlines() if "40 steps" in line)
    assert "engaged: " in summary
    assert SURE in summary
    manifest = json.loads((done.folder / "exported/manifest.json").read_text())
    (note,) = (note for note in manifest["notes"] if note.startswith("it was trained with"))
    assert SURE in note
    assert "it was trained with" in done.export.stderr
    # no boost is in what was captured
    samples = torch.load(done.capture / "samples.pt", weights_only=True)
    inputs = [call[0] for call in samples["inputs"]]
    given = [call[0] for call in samples["outputs"]]
    assert all(x.dtype == torch.float32 and x.is_contiguous() for x in (*inputs, *given))
    for wanted, found in zip(own_outputs(done.folder, inputs), given, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    program = torch.export.load(done.capture / "model.pt2")
    assert {value.dtype for value in program.state_dict.values()} <= {torch.float32, torch.int64}
    assert all(value.is_contiguous() for value in program.state_dict.values())
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [
        name for name in names if "autocast" in name or "_to_copy" in name or ".to." in name
    ]
    facts = json.loads((done.capture / "capture.json").read_text())
    assert facts["notes"] == []
    # the exported model is the trained one
    samples = torch.load(done.capture / "samples.pt", weights_only=True)
    inputs = [call[0] for call in samples["inputs"]]
    answers = [found["output"] for found in exported.answers(done.folder / "exported", inputs)]
    right = 0
    for found, wanted, labels in zip(
        answers, own_outputs(done.folder, inputs), samples["targets"], strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
        right += int((found.argmax(1) == labels).sum())
    told = float(done.export.stdout.split()[-1])
    # The script evaluates with what the plan rounds: rows that are nearly a tie may change sides.
    assert right / 80 == pytest.approx(told, abs=3 / 80)


def test_a_script_that_fails_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    found = ran(tmp_path, "--no-plan", "--export", "train.py", "3")
    assert found.returncode == 3
    assert "the model is not exported: the script ended with exit code 3" in found.stderr
    assert not (tmp_path / "exported").exists()
