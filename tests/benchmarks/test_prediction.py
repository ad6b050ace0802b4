"""What the rules predict of steps on a GPU, from the little that is known of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def prediction(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    names = ("prediction", "tuning", "record", "breadth")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import prediction as benchmark

    yield benchmark
    for name in names:
        sys.modules.pop(name, None)


def test_the_committed_figures_of_gpus_are_those_of_todays_rules(prediction: Any) -> None:
    path = prediction.record.RESULTS / "prediction.json"
    committed = json.loads(path.read_text(encoding="utf-8"))["figures"]
    made = prediction.figures({})
    assert committed["on_gpus"] == made["on_gpus"]
    assert committed["gpus"] == made["gpus"]
    assert committed["gpus"]["asked"] == 3


def test_the_known_products_fit_into_their_steps(prediction: Any) -> None:
    path = prediction.record.RESULTS / "gpu" / "pairs.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    for facts in known["steps"].values():
        products_ms = facts["products_tflop"] / known["ceilings"]["matmul-fp32"] * 1000
        assert 0.5 * facts["step_ms"] < products_ms < facts["step_ms"]
        assert set(facts["gains"]) <= {"bf16-autocast", "tf32"}
