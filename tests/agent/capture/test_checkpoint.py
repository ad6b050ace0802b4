"""Weights from whatever scripts save, and refusals that name what does not fit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.capture import checkpoint
from flatout_agent.capture.refusal import CannotCapture


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def prefixed(prefix: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {prefix + name: value for name, value in state.items()}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], str]:
    def save(value: Any) -> str:
        path = tmp_path / "weights.pt"
        torch.save(value, path)
        return str(path)

    return save


def assert_loaded(path: str, wanted: nn.Module, key: str = "") -> list[str]:
    model = network()
    notes = checkpoint.load(model, path, key)
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted.state_dict()[name]), name
    return notes


@pytest.mark.parametrize(
    "packed",
    [
        dict,
        prefixed("module."),
        prefixed("_orig_mod."),
        prefixed("model."),
        prefixed("module._orig_mod."),
        prefixed("net.backbone."),
        lambda state: {"model": state, "optimizer": {"lr": 1}, "epoch": 3},
        lambda state: {"state_dict": prefixed("model.")(state), "hyper_parameters": {"a": 1}},
        lambda state: {"model_state_dict": state, "args": argparse.Namespace(lr=1)},
        lambda state: {n: v for n, v in state.items() if "num_batches" not in n},
    ],
    ids=range(10),
)
def test_layouts(packed: Callable[[Any], Any], saved: Callable[[Any], str]) -> None:
    own = network()
    assert_loaded(saved(packed(own.state_dict())), own)


def test_the_average_by_name_alone(saved: Callable[[Any], str]) -> None:
    own, average = network(), network()
    path = saved({"model": own.state_dict(), "ema": average.state_dict()})
    assert_loaded(path, own)
    assert_loaded(path, average, "ema")
    states = {
        **prefixed("ema_model.")(average.state_dict()),
        **prefixed("model.")(own.state_dict()),
    }
    notes = assert_loaded(saved(states), own)
    assert "belong to something else" in notes[0]


def test_a_whole_module(saved: Callable[[Any], str]) -> None:
    own = network()
    assert_loaded(saved(own), own)


def test_safetensors_and_a_folder(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    own = network()
    safetensors.save_file(own.state_dict(), tmp_path / "model.safetensors")
    assert_loaded(str(tmp_path / "model.safetensors"), own)
    assert_loaded(str(tmp_path), own)


def test_tied_weights_that_are_saved_once(saved: Callable[[Any], str]) -> None:
    model = nn.Module()
    model.a, model.b = nn.Linear(2, 2), nn.Linear(2, 2)
    model.b.weight = model.a.weight
    state = model.state_dict()
    del state["b.weight"]
    checkpoint.load(model, saved(state))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("0.bias"), r"missing: 0\.bias"),
        (lambda state: state.update(more=torch.ones(1)), "not in the model: more"),
        (
            lambda state: state.update({"0.bias": torch.ones(5)}),
            r"of another shape: 0\.bias \[5\] instead of \[4\]",
        ),
    ],
)
def test_what_does_not_fit_is_listed(
    change: Callable[[Any], Any], says: str, saved: Callable[[Any], str]
) -> None:
    state = network().state_dict()
    change(state)
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CannotCapture, match=says):
        checkpoint.load(model, saved(state))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Planted:
    """Would run code when it is read."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("planted"),)


def test_code_in_a_file_does_not_run(
    saved: Callable[[Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved({"model": network().state_dict(), "extra": Planted()})
    with pytest.raises(CannotCapture):
        checkpoint.load(network(), path)
    assert not Path("planted").exists()


@pytest.mark.parametrize("text", ["", "no checkpoint"])
def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(CannotCapture, match="cannot be read as a checkpoint"):
        checkpoint.load(network(), str(path))
    with pytest.raises(CannotCapture, match="there is no checkpoint"):
        checkpoint.load(network(), str(tmp_path / "gone.pt"))


def test_no_state_dict_in_it(saved: Callable[[Any], str]) -> None:
    with pytest.raises(CannotCapture, match="it holds: epoch, lr"):
        checkpoint.load(network(), saved({"epoch": 3, "lr": 0.1}))
