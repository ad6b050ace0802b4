"""The three examples, exported with the weights that they train, score what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import exported

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class TrainedExample:
    """An example that was trained and exported."""

    printed: str
    document: dict[str, Any]
    answers: list[torch.Tensor]
    """Of the exported model, for each call of the script's last evaluation."""
    targets: list[torch.Tensor]

    def told(self, pattern: str) -> float:
        """The last figure of this kind that the script printed."""
        return float(re.findall(pattern, self.printed)[-1])


def trained(root: Path, folder: Path, name: str, words: str) -> TrainedExample:
    program = root / "examples" / name / "train.py"
    own = words.format(folder=folder).split()
    done = exported.quick(folder, "export", "--json", str(program), "--out", "out", *own)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["id"]: row for row in document["candidates"]}
    assert rows["onnxruntime"]["guard"]["passed"], rows["onnxruntime"]["reason"]
    assert document["weights"] == "trained"
    (capture,) = folder.glob(".flatout/runs/*/capture-*")
    samples = torch.load(capture / "samples.pt", weights_only=True)
    inputs = [call[0] for call in samples["inputs"]]
    # Whichever of the two was kept: what serves is ONNX Runtime's build here.
    built = Path(folder, document["run_folder"], "candidates/onnxruntime")
    found = [next(iter(answer.values())) for answer in exported.answers(built, inputs)]
    return TrainedExample(done.stderr, document, found, samples["targets"])


def hits(answer: torch.Tensor, target: torch.Tensor) -> float:
    """As the example on BERT counts them, in one batch."""
    right = (answer.argmax(-1) == target).sum().item()
    return right / max(1, int((target != -100).sum()))


def loss(answer: torch.Tensor, target: torch.Tensor) -> float:
    return functional.cross_entropy(answer.flatten(0, -2), target.flatten()).item()


def mean(figure: Callable[[torch.Tensor, torch.Tensor], float], example: TrainedExample) -> float:
    pairs = list(zip(example.answers, example.targets, strict=True))
    return sum(figure(*pair) for pair in pairs) / len(pairs)


@pytest.mark.thorough
def test_text(root: Path, tmp_path: Path) -> None:
    words = (
        "--layers 2 --heads 2 --width 64 --context 32 --steps 30 --eval-every 10 --batch-size 16"
        " --sample 4"
    )
    example = trained(root, tmp_path, "text", words)
    assert mean(loss, example) == pytest.approx(example.told(r"validation loss ([\d.]+)"), abs=2e-4)
    assert any("left out" in note for note in example.document["notes"])  # the loss's targets


@pytest.mark.thorough
def test_bert(root: Path, tmp_path: Path) -> None:
    words = "--data {folder}/data --layers 2 --width 64 --steps 40 --batch-size 16"
    example = trained(root, tmp_path, "bert", words)
    told = example.told(r"test loss [\d.]+ masked accuracy ([\d.]+)")
    assert mean(hits, example) == pytest.approx(told, abs=1e-4)
    assert mean(loss, example) == pytest.approx(example.told(r"test loss ([\d.]+)"), abs=2e-4)
    # The script's is a mean of batches, ours is of words.
    assert example.document["metric"]["value"] == pytest.approx(told, abs=0.02)


@pytest.mark.thorough
def test_images(root: Path, tmp_path: Path) -> None:
    words = "--data {folder}/data --size 32 --epochs 1 --batch-size 64"
    example = trained(root, tmp_path, "images", words)
    told = example.told(r"test accuracy ([\d.]+)")
    right = sum(
        int((answer.argmax(1) == target).sum())
        for answer, target in zip(example.answers, example.targets, strict=True)
    )
    count = sum(map(len, example.targets))
    assert right / count == pytest.approx(told, abs=1e-4)
    assert example.document["metric"]["value"] == pytest.approx(told, abs=1e-4)
