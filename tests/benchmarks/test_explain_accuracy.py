"""Real cases of public threads are explained rightly, also mangled, and never surely wrong."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from flatout.explaining import explaining


@pytest.fixture
def accuracy(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("explain_accuracy")


def test_real_cases(accuracy: ModuleType) -> None:
    rows = accuracy.CASES.read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, rows) if case["determinable"] != "hidden"]
    assert len(cases) >= 200
    for mangle in (str, *accuracy.mangling.EVERY):
        found = accuracy.score(cases, mangle, False)
        assert found["share_right"] >= accuracy.GOAL_RIGHT, mangle
        assert found["confident_wrong"] == 0, mangle


def test_what_counts_as_right(accuracy: ModuleType) -> None:
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    match = explaining.explain_text(killed).matches[0]
    assert accuracy.judged(match, ["ram|memory", "num_workers"]) == ("right", [])
    # The evidence repeats the text: it counts for nothing.
    assert accuracy.judged(match, ["pid 7"]) == ("wrong", ["pid 7"])
    assert accuracy.judged(None, ["memory"]) == ("not_recognised", [])
