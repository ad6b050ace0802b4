"""`flatout.export()`: a model and batches become a capture folder, or an error says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import flatout


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * scale


class Decides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


X, SCALE = torch.randn(8, 4), torch.rand(8, 1)


@pytest.mark.parametrize(
    "samples",
    [[(X, SCALE)], [[X, SCALE]], [{"x": X, "scale": SCALE}, {"x": X[:3], "scale": SCALE[:3]}]],
)
def test_batches_as_the_model_is_called_with_them(samples: list[object], tmp_path: Path) -> None:
    captured = flatout.export(Scaled(), samples, tmp_path / "capture")
    assert captured.folder == str(tmp_path / "capture")
    facts = json.loads((tmp_path / "capture" / "capture.json").read_text())
    assert (facts["source"], facts["batch_dynamic"]) == ("library", True)
    assert [row["name"] for row in facts["inputs"]] == ["x", "scale"]


def test_a_folder_of_its_own_and_a_generator_of_tensors() -> None:
    captured = flatout.export(nn.Linear(4, 2), (X[:n] for n in (2, 8)))
    assert captured.batch_sizes == (2, 8)
    program = torch.export.load(Path(captured.folder) / "model.pt2").module()
    assert program(X[:5])[0].shape == (5, 2)


def test_errors_say_why_and_what_to_do() -> None:
    with pytest.raises(flatout.UsageError, match="no samples"):
        flatout.export(Scaled(), [])
    with pytest.raises(flatout.UsageError, match=r"test_exporting\.py:\d+.*torch\.where"):
        flatout.export(Decides(), [X])
