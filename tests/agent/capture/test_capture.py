"""From a model and its calls to a capture folder, or to a refusal that names the line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.capture import models
from flatout_agent.capture.calls import SeenCall
from flatout_agent.capture.capture import Wanted, capture
from flatout_agent.capture.refusal import CannotCapture

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)) * 3


def call(*args: Any, **kwargs: Any) -> SeenCall:
    return SeenCall(args, kwargs)


def taken(model: nn.Module, calls: list[SeenCall], folder: Path, **more: Any) -> dict[str, Any]:
    """The facts of the capture, whose program and samples were compared with the model."""
    capture(model, calls, Wanted(str(folder), "library", **more))
    facts: dict[str, Any] = json.loads((folder / "capture.json").read_text())
    samples = torch.load(folder / "samples.pt", weights_only=True)
    program = torch.export.load(folder / "model.pt2").module()
    assert facts["schema"] == "flatout.capture/1"
    assert len(samples["inputs"]) == len(samples["outputs"]) == len(samples["targets"])
    for inputs, outputs in zip(samples["inputs"], samples["outputs"], strict=True):
        for found, wanted in zip(program(*inputs), outputs, strict=True):
            torch.testing.assert_close(found, wanted)
    return facts


def shapes(rows: list[dict[str, Any]]) -> list[tuple[str, list[int | None]]]:
    return [(row["name"], row["shape"]) for row in rows]


def test_the_model_in_evaluation_mode_and_untouched(tmp_path: Path) -> None:
    model = models.Plain().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    facts = taken(model, [call(X), call(X[:3])], tmp_path)
    assert shapes(facts["inputs"]) == [("x", [None, 4])]
    assert shapes(facts["outputs"]) == [("output", [None, 3])]
    assert (facts["batch_sizes"], facts["batch_dynamic"]) == ([3, 8], True)
    assert facts["notes"] == []
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    outputs = torch.load(tmp_path / "samples.pt")["outputs"]
    with torch.no_grad():
        torch.testing.assert_close(outputs[0][0], model.eval()(X))


def line(model: type[nn.Module], code: str) -> str:
    """file:line where the model's forward has this code."""
    source, first = inspect.getsourcelines(model)
    at = next(place for place, text in enumerate(source) if code in text)
    return f"models.py:{first + at}"


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        (models.Branches, "if x.sum() > 0", "decides by a value"),
        (models.TakesNumber, ".item()", "takes a number out of a tensor"),
        (models.Numpy, "np.tanh", "NumPy"),
        (models.Draws, "randn_like", "random numbers"),
    ],
)
def test_refused_with_the_line(
    model: type[nn.Module], code: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotCapture, match=says) as refused:
        taken(model(), [call(X)], tmp_path)
    assert refused.value.cure
    assert refused.value.where[0].endswith(line(model, code))
    assert not (tmp_path / "capture.json").exists()


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (models.Keeps, X, "keeps state from call to call"),
        (models.GivesList, X, "returns no tensor but list"),
        (models.TakesObject, models.Record(X), "object of class Record"),
    ],
)
def test_refused(model: type[nn.Module], given: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(CannotCapture, match=says) as refused:
        taken(model(), [call(given)], tmp_path)
    assert refused.value.cure


def test_a_call_that_fails_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(CannotCapture, match=r"models\.py:\d+: RuntimeError"):
        taken(models.Plain(), [call(X[:, :2])], tmp_path)


def test_an_input_that_forward_writes_into(tmp_path: Path) -> None:
    given = X.clone()
    facts = taken(models.WritesInput(), [call(given)], tmp_path)
    assert "in place (x)" in facts["notes"][0]
    assert torch.equal(torch.load(tmp_path / "samples.pt")["inputs"][0][0], X)


def test_arguments_by_name_and_nested_outputs(tmp_path: Path) -> None:
    facts = taken(models.ByName(), [call(a=X, b=X), call(a=X[:2], b=X[:2])], tmp_path)
    assert shapes(facts["inputs"]) == [("a", [None, 4]), ("b", [None, 4])]
    assert shapes(facts["outputs"]) == [("y", [None, 4]), ("parts_0", [None, 4])]


def test_a_dataclass_and_calls_of_another_kind(tmp_path: Path) -> None:
    calls = [call(models.Batch(X)), call(models.Batch(X)), call(models.Batch(X, 3.0))]
    facts = taken(models.TakesDataclass(), calls, tmp_path)
    assert shapes(facts["inputs"]) == [("batch_x", [None, 4])]
    assert "1 of 3 calls were of another kind" in facts["notes"][0]
    assert "'2.0'" in facts["notes"][0]


def test_an_evaluation_counts_more_than_single_calls_of_another_kind(tmp_path: Path) -> None:
    """As where a sample is generated when the training is over."""
    calls = [call(X, X * 2), *[call(X[:1]) for _ in range(20)]]
    facts = taken(models.WithLoss(), calls, tmp_path)
    assert facts["batch_sizes"] == [8]
    assert facts["metric"]["name"] == "mean squared error"
    assert "20 of 21 calls were of another kind" in facts["notes"][0]


def test_len_of_a_tensor_does_not_fix_the_batch(tmp_path: Path) -> None:
    assert taken(models.Length(), [call(X)], tmp_path)["batch_dynamic"]
    assert "len" not in vars(models)


def test_one_sample_at_a_time(tmp_path: Path) -> None:
    facts = taken(models.Plain(), [call(X[:1]), call(X[1:2])], tmp_path)
    assert (facts["batch_sizes"], facts["batch_dynamic"]) == ([1], True)


def test_samples_that_depend_on_each_other(tmp_path: Path) -> None:
    facts = taken(models.Centred(), [call(X)], tmp_path)
    assert not facts["batch_dynamic"]
    assert shapes(facts["inputs"]) == [("x", [8, 4])]
    assert "depend on each other" in facts["notes"][0]


@pytest.mark.slow
def test_time_first_and_state(tmp_path: Path) -> None:
    x = torch.randn(5, 3, 4)
    state = (torch.zeros(1, 3, 6), torch.zeros(1, 3, 6))
    facts = taken(models.Recurrent(), [call(x, state)], tmp_path)
    assert [shape for _, shape in shapes(facts["inputs"])] == [
        [5, None, 4],
        [1, None, 6],
        [1, None, 6],
    ]
    assert not facts["batch_dynamic"]  # the first dimension counts no samples
    assert "samples are not counted in the first dimension" in facts["notes"][0]


@pytest.mark.slow
def test_sequences_of_several_lengths_need_one_length_in_a_recurrent_layer(tmp_path: Path) -> None:
    calls = [call(torch.randn(length, 3, 4)) for length in (5, 5, 7)]
    facts = taken(models.Recurrent(), calls, tmp_path)
    assert facts["inputs"][0]["shape"] == [5, None, 4]
    assert any("nn.LSTM" in note for note in facts["notes"])
    assert facts["notes"][-1] == "1 of 3 calls had other sizes"


@pytest.mark.parametrize("model", [models.WithLoss, models.NeedsLabels])
def test_labels_are_no_input(model: type[nn.Module], tmp_path: Path) -> None:
    facts = taken(model(), [call(X, X * 2)], tmp_path)
    assert shapes(facts["inputs"]) == [("x", [None, 4])]
    assert facts["outputs"][0]["shape"] == [None, 4]
    assert facts["metric"]["name"] == "mean squared error"
    assert torch.equal(torch.load(tmp_path / "samples.pt")["targets"][0], X * 2)


def test_a_module_that_gives_the_loss_alone(tmp_path: Path) -> None:
    facts = taken(models.LossAlone(), [call(X, torch.zeros(8, dtype=torch.long))], tmp_path)
    assert facts["model"] == "Plain"
    assert "LossAlone returns only a loss" in facts["notes"][0]


def test_a_module_inside_by_name(tmp_path: Path) -> None:
    facts = taken(models.Plain(), [call(X)], tmp_path, inside="inner")
    assert (facts["model"], facts["parameters"]) == ("Linear", 40)
    with pytest.raises(CannotCapture, match="no module 'outer'"):
        taken(models.Plain(), [call(X)], tmp_path, inside="outer")


def test_what_deepcopy_would_not_copy(tmp_path: Path) -> None:
    model = models.Awkward()
    taken(model, [call(X)], tmp_path)
    assert model.call.__self__ is model.layer  # the user's own still is


def test_weights_of_half_precision_and_of_double(tmp_path: Path) -> None:
    facts = taken(models.Plain().bfloat16(), [call(X.bfloat16())], tmp_path / "half")
    assert facts["inputs"][0]["dtype"] == "float32"
    assert "half precision" in facts["notes"][0]
    facts = taken(models.Plain().double(), [call(X.double())], tmp_path / "double")
    assert facts["inputs"][0]["dtype"] == "float64"


def test_a_torchscript_module_is_refused(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(models.Plain().eval(), X)
    with pytest.raises(CannotCapture, match="TorchScript"):
        taken(traced, [call(X)], tmp_path)
