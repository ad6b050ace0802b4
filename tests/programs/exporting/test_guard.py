"""The guard of an export: every wrong build is refused, no sound one is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from flatout_programs.exporting import guard
from flatout_programs.exporting.calls import CallFiles, Writer

Run = Callable[[list[Any]], list[Any]]
WEIGHTS = numpy.random.default_rng(0).standard_normal((12, 10)).astype(numpy.float32)
FACTS: dict[str, Any] = {
    "output_names": ["logits"],
    "output_axes": [0],
    "own_errors": [1e-7],
    "class_output": 0,
    "class_axis": 1,
}


def model(inputs: list[Any]) -> list[Any]:
    return [inputs[0] @ WEIGHTS]


def rows(count: int, seed: int) -> Any:
    return numpy.random.default_rng(seed).standard_normal((count, 12)).astype(numpy.float32)


def written(folder: Path, labels: bool = False, count: int = 330) -> CallFiles:
    writer = Writer(folder)
    folder.mkdir(exist_ok=True)
    for group, sizes in (("seen", [32, 32, 7]), ("single", [1] * 8), ("unseen", [count])):
        for at, size in enumerate(sizes):
            values = rows(size, at)
            outputs = model([values])[0]
            target = torch.from_numpy(outputs.argmax(1)) if labels else None
            if target is not None:
                target[::5] = (target[::5] + 1) % 10  # the model is right four times of five
            tensors = [torch.from_numpy(values)], [torch.from_numpy(outputs)]
            writer.add(group, size, *tensors, target)
    writer.close()
    return CallFiles(folder)


@pytest.fixture
def calls(tmp_path: Path) -> CallFiles:
    return written(tmp_path)


@pytest.fixture
def planted(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("planted_exports")


def test_every_wrong_build_is_refused(planted: ModuleType, calls: CallFiles) -> None:
    assert len(planted.WRONG) >= 16
    for change, precisions in planted.WRONG.items():
        for precision in precisions:
            found = guard.verify(calls, FACTS, change(model), precision)
            assert not found["passed"], (change.__name__, precision)
            assert found["reason"], change.__name__


def test_no_sound_build_is_refused(planted: ModuleType, calls: CallFiles) -> None:
    for change, precisions in planted.SOUND.items():
        for precision in precisions:
            found = guard.verify(calls, FACTS, change(model), precision)
            assert found["passed"], (change.__name__, precision, found["reason"])
            assert found["samples"] == 71
            assert found["batch_sizes"] == [1, 7, 32]


def test_a_single_bad_row_in_a_large_batch_is_refused_though_the_whole_error_is_small(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    values = rows(1000, 3)
    writer.add("seen", 1000, [torch.from_numpy(values)], [torch.from_numpy(model([values])[0])])
    writer.close()

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = model(inputs)
        outputs[0][500] *= 1.2
        return outputs

    found = guard.verify(CallFiles(tmp_path), FACTS, wrong, "rounding")
    assert found["relative_error"] < guard.ROUNDING
    assert not found["passed"]
    assert "a row" in found["reason"]


def test_values_that_are_infinite_in_the_model_must_be_in_the_build(tmp_path: Path) -> None:
    masked = numpy.array([[1.0, -numpy.inf, 2.0]] * 4, numpy.float32)
    writer = Writer(tmp_path)
    writer.add("seen", 4, [torch.zeros(4, 3)], [torch.from_numpy(masked)])
    writer.close()
    calls = CallFiles(tmp_path)
    assert guard.verify(calls, FACTS, lambda inputs: [masked], "exact")["passed"]
    finite = numpy.where(numpy.isfinite(masked), masked, -1e9).astype(numpy.float32)
    assert not guard.verify(calls, FACTS, lambda inputs: [finite], "exact")["passed"]


def test_whole_numbers_must_be_the_same(tmp_path: Path) -> None:
    answers = numpy.arange(64)
    writer = Writer(tmp_path)
    writer.add("seen", 64, [torch.zeros(64, 3)], [torch.from_numpy(answers)])
    writer.close()
    facts = {**FACTS, "own_errors": [None], "class_output": None}
    off = answers.copy()
    off[3] += 1
    assert guard.verify(CallFiles(tmp_path), facts, lambda inputs: [answers], "exact")["passed"]
    assert not guard.verify(CallFiles(tmp_path), facts, lambda inputs: [off], "exact")["passed"]


def test_the_limit_follows_the_models_own_error_but_not_without_end() -> None:
    assert guard.limit_of("exact", 1e-7) == guard.EXACT
    assert guard.limit_of("exact", 2e-6) == pytest.approx(4e-5)
    assert guard.limit_of("exact", 1.0) == guard.EXACT_MOST
    assert guard.limit_of("exact", None) == guard.EXACT
    assert guard.limit_of("rounding", 1e-7) == guard.ROUNDING


def flipped(share: float) -> Run:
    """A build that answers another class in this share of the rows."""

    def run(inputs: list[Any]) -> list[Any]:
        outputs = model(inputs)[0].copy()
        count = round(share * len(outputs))
        outputs[:count] = numpy.roll(outputs[:count], 1, axis=1)
        return [outputs]

    return run


@pytest.mark.parametrize("labels", [False, True])
def test_a_quantised_build_must_be_proven(tmp_path: Path, labels: bool) -> None:
    calls = written(tmp_path / "many", labels)
    assert guard.verify(calls, FACTS, model, "quantised")["passed"]
    worse = guard.verify(calls, FACTS, flipped(0.05), "quantised")
    assert not worse["passed"]
    assert worse["metric"] == ("accuracy" if labels else "agreement")
    assert worse["lower"] < 0.99
    few = guard.verify(written(tmp_path / "few", labels, 100), FACTS, model, "quantised")
    assert not few["passed"]
    assert "not proven" in few["reason"]


def test_the_bound_is_one_that_holds(tmp_path: Path) -> None:
    """A build that loses exactly 2 % of the reference passes in hardly any draw."""
    draw = numpy.random.default_rng(0)
    passed = 0
    for _ in range(200):
        reference = draw.random(400) < 0.9
        build = reference & (draw.random(400) > 0.02)
        lower = guard.paired_bound(build.tolist(), reference.tolist())[2]
        passed += lower >= 0.99
    assert passed <= 5


def test_numbers_without_classes_are_judged_by_their_error(tmp_path: Path) -> None:
    calls = written(tmp_path)
    facts = {**FACTS, "class_output": None}
    near = guard.verify(calls, facts, lambda inputs: [model(inputs)[0] * 1.002], "quantised")
    assert near["passed"], near["reason"]
    assert near["metric"] == "error"
    far = guard.verify(calls, facts, lambda inputs: [model(inputs)[0] * 1.05], "quantised")
    assert not far["passed"]
