"""Real cases of public threads are explained rightly, also mangled, and never surely wrong."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flatout.explaining import explaining


@pytest.fixture
def accuracy(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("explain_accuracy")


def assert_right(accuracy: ModuleType, *mangles: Any) -> None:
    rows = accuracy.CASES.read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, rows) if case["determinable"] != "hidden"]
    assert len(cases) >= 200
    for mangle in mangles:
        found = accuracy.score(cases, mangle, False)
        assert found["share_right"] >= accuracy.GOAL_RIGHT, mangle
        assert found["confident_wrong"] == 0, mangle


@pytest.mark.slow
def test_real_cases_as_they_are(accuracy: ModuleType) -> None:
    assert_right(accuracy, str)


@pytest.mark.thorough
@pytest.mark.slow
def test_real_cases_mangled_in_every_way(accuracy: ModuleType) -> None:
    assert_right(accuracy, *accuracy.mangling.EVERY)


@pytest.mark.slow
def test_what_counts_as_right(accuracy: ModuleType) -> None:
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    match = explaining.explain_text(killed).matches[0]
    assert accuracy.judged(match, ["ram|memory", "num_workers"]) == ("right", [])
    # The evidence repeats the text: it counts for nothing.
    assert accuracy.judged(match, ["pid 7"]) == ("wrong", ["pid 7"])
    assert accuracy.judged(None, ["memory"]) == ("not_recognised", [])


@pytest.mark.slow
def test_for_a_text_of_no_known_error_silence_is_right(accuracy: ModuleType) -> None:
    own = {"id": "N1", "family": "none", "text": "ValueError: no such cohort: 'west'"}
    known = {"id": "N2", "family": "none", "text": "ImportError: No module named 'triton'"}
    cases = [{**case, "determinable": "text"} for case in (own, known)]
    figures = accuracy.score(cases, str, False)
    assert (figures["right"], figures["wrong"], figures["not_recognised"]) == (1, 1, 0)
    assert figures["by_determinable"] == {
        "none": {"right": 1, "wrong": 1, "confident_wrong": 0, "not_recognised": 0}
    }


def test_the_first_look_is_kept(accuracy: ModuleType, tmp_path: Path) -> None:
    accuracy.keep("explain_accuracy-fresh", {"right": 7}, tmp_path)
    accuracy.keep("explain_accuracy-fresh", {"right": 9}, tmp_path)
    kept, latest = (
        json.loads((tmp_path / f"explain_accuracy-fresh{end}.json").read_text())
        for end in ("-first", "")
    )
    assert (kept["figures"]["right"], latest["figures"]["right"]) == (7, 9)
    assert kept["date"]


def test_a_file_that_was_scored_before_has_no_first_look(
    accuracy: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "explain_accuracy-old.json").write_text("{}")
    accuracy.keep("explain_accuracy-old", {}, tmp_path)
    assert not (tmp_path / "explain_accuracy-old-first.json").exists()
