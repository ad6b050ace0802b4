"""A capture made ready: rows, batch axes, references, and samples kept apart for calibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import exported
from flatout_programs.exporting import prepare
from flatout_programs.exporting.calls import CallFiles


def ready(folder: Path, *sizes: int, **options: Any) -> tuple[dict[str, Any], CallFiles]:
    calls = exported.images(*sizes)
    captured = exported.capture(folder / "capture", exported.small_cnn(), calls, **options)
    facts = prepare.prepare(captured, folder / "prepared", 1)
    return facts, CallFiles(folder / "prepared")


@pytest.mark.slow
def test_rows_alone_and_in_their_batches(tmp_path: Path) -> None:
    facts, calls = ready(tmp_path, 32, 32, 5)
    assert (facts["rows"], facts["batch_sizes"], facts["single_rows"]) == (69, [5, 32], 1)
    assert facts["input_axes"] == facts["output_axes"] == [0]
    assert (facts["class_output"], facts["class_axis"]) == (0, 1)
    assert not facts["batch_matters"]
    assert 0 < facts["own_errors"][0] < 1e-5
    assert calls.count("seen") == 3
    assert calls.count("single") >= 16
    assert {calls.rows("single", at) for at in range(calls.count("single"))} == {1}


def test_no_row_of_the_calibration_is_judged_by(tmp_path: Path) -> None:
    facts, calls = ready(tmp_path, *[64] * 8)
    kept = [calls.inputs("calibration", at)[0] for at in range(calls.count("calibration"))]
    judged = [calls.inputs("unseen", at)[0] for at in range(calls.count("unseen"))]
    assert sum(map(len, kept)) == 128
    assert sum(map(len, judged)) == facts["rows"] - 128 >= 300
    seen = {row.tobytes() for call in judged for row in call}
    assert not any(row.tobytes() in seen for call in kept for row in call)


def test_labels_go_with_their_rows(tmp_path: Path) -> None:
    labels = [torch.arange(64) % 10, torch.arange(40) % 10]
    _, calls = ready(tmp_path, 64, 40, targets=labels)
    for at in range(calls.count("unseen")):
        assert len(calls.target("unseen", at)) == calls.rows("unseen", at)


def test_a_fixed_batch_is_never_cut(tmp_path: Path) -> None:
    facts, calls = ready(tmp_path, 8, 8, 8, 8, dynamic=False)
    assert facts["single_rows"] == 8
    assert {calls.rows("single", at) for at in range(calls.count("single"))} == {8}
    sizes = [calls.inputs(group, at)[0].shape[0] for group in ("unseen", "calibration")
             for at in range(calls.count(group))]  # fmt: skip
    assert set(sizes) == {8}
    assert len(sizes) == 4


def test_a_batch_that_is_the_second_dimension() -> None:
    specs = [{"shape": [None, None, 7]}, {"shape": [3]}, {"shape": [None]}]
    calls = [(torch.zeros(11, 4, 7), torch.zeros(3), torch.zeros(4))]
    calls += [(torch.zeros(9, 6, 7), torch.zeros(3), torch.zeros(6))]
    captured = {"batch_sizes": [4, 6], "batch_dynamic": True}
    assert prepare.axes(specs, calls, captured) == [1, None, 0]
    cut = prepare.cut(calls[0], [1, None, 0], 2, 3)
    assert [list(item.shape) for item in cut] == [[11, 1, 7], [3], [1]]


class Centred(nn.Module):
    """What a row gives depends on the others of its batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) + 0.1 * x


def test_a_model_that_mixes_rows_is_told(tmp_path: Path) -> None:
    captured = exported.capture(tmp_path / "capture", Centred(), [(torch.randn(6, 3),)])
    assert prepare.prepare(captured, tmp_path / "prepared", 1)["batch_matters"]


class Counting(nn.Module):
    """A state that changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        return x + self.seen


@pytest.mark.parametrize(
    ("model", "outputs", "says"),
    [
        (Counting(), None, "at the second call .* keeps a state between calls"),
        (nn.Identity(), lambda call: (torch.zeros(6, 3),), "is not what it was in the script"),
    ],
)
def test_a_model_that_does_not_repeat_its_results_is_refused(
    tmp_path: Path, model: nn.Module, outputs: Any, says: str
) -> None:
    calls = [(torch.randn(6, 3),)]
    captured = exported.capture(tmp_path / "capture", model, calls, outputs=outputs)
    with pytest.raises(prepare.Unfit, match=says):
        prepare.prepare(captured, tmp_path / "prepared", 1)


def test_types_that_numpy_has_not_are_refused_by_name(tmp_path: Path) -> None:
    captured = exported.capture(tmp_path / "capture", nn.Identity(), [(torch.randn(6, 3),)])
    facts = json.loads((captured / "capture.json").read_text(encoding="utf-8"))
    facts["inputs"][0]["dtype"] = "bfloat16"
    (captured / "capture.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(prepare.Unfit, match="x0 is bfloat16"):
        prepare.prepare(captured, tmp_path / "prepared", 1)


def test_differences() -> None:
    ones = torch.ones(4)
    assert prepare.difference(ones, ones) == 0.0
    assert prepare.difference(ones * 1.01, ones) == pytest.approx(0.01)
    assert prepare.difference(ones, torch.zeros(4)) == float("inf")
    assert prepare.difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert prepare.difference(ones, torch.ones(5)) == float("inf")
    odd = torch.tensor([1.0, float("-inf")])
    assert prepare.difference(odd, odd.clone()) == 0.0
    assert numpy.isfinite(prepare.difference(torch.ones(2, dtype=torch.complex64) * 1.1,
                                             torch.ones(2, dtype=torch.complex64)))  # fmt: skip
