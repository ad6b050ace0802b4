import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.nouns.run_end import RunEnd
from flatout.nouns.tuned import Tuned
from flatout.reporting import document
from reporting import tuned_examples
from reporting.strategies import TUNED


def strict(text: str) -> Any:
    """Parsed as JavaScript would: NaN and Infinity are errors."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.slow
@given(TUNED)
def test_any_tuned_is_valid_json_and_comes_back_as_it_went(tuned: Tuned) -> None:
    published = document.tune_document(tuned)
    assert strict(json.dumps(published)) == published


@settings(deadline=None, max_examples=40)
@given(st.builds(RunEnd), st.lists(st.text()), st.integers())
def test_any_run_is_valid_json(end: RunEnd, command: list[str], exit_code: int) -> None:
    published = document.run_document(end, command, exit_code)
    assert strict(json.dumps(published)) == published


TUNE_KEYS = {
    "schema", "answer", "command", "baseline", "best", "speedup", "speedup_interval", "boosts",
    "trials", "guard", "learning", "confirmation", "plan", "report", "run_folder",
    "pays_after_steps", "compile_s", "machine", "noise", "deterministic", "wall_s", "interrupted",
    "redirected", "leaked", "faults", "notes", "tried",
}  # fmt: skip
SIDE_KEYS = {
    "step_ms", "samples_per_s", "steps_ms", "losses", "wait_share", "compile_s",
    "peak_bytes", "recompiles", "graph_breaks",
}  # fmt: skip
TRIAL_KEYS = {
    "boosts", "tried", "params", "verdict", "reason", "measured", "gain", "guard", "engaged",
    "log", "wall_s", "retried", "step_ms", "interval", "pairs", "why_untried",
}  # fmt: skip
GUARD_KEYS = {
    "passed", "reason", "gradient_error", "batch_noise", "own_noise", "loss_sigma", "finite",
    "redrawn_sigma",
    "gradient_compared",
}  # fmt: skip
RUN_KEYS = {
    "matches", "live",
    "schema", "command", "exit_code", "steps", "samples_per_s", "peak_bytes", "wait_share",
    "engaged", "not_engaged", "faults", "interrupted", "notes", "observations", "ranks",
}  # fmt: skip


def test_the_published_keys_of_version_1_stay() -> None:
    """Others read these. A key may be added here; one that is renamed needs a new version."""
    published = document.tune_document(tuned_examples.good())
    assert published["schema"] == "flatout.tune/1"
    assert set(published) == TUNE_KEYS
    assert set(published["baseline"]) == set(published["best"]) == SIDE_KEYS
    assert all(set(trial) == TRIAL_KEYS for trial in published["trials"])
    assert set(published["guard"]) == GUARD_KEYS
    run = document.run_document(RunEnd(steps=3), ("train.py",), 0)
    assert run["schema"] == "flatout.run/1"
    assert set(run) == RUN_KEYS


def test_the_numbers_of_a_good_case() -> None:
    published = document.tune_document(tuned_examples.good())
    assert published["answer"] == "faster"
    assert published["baseline"]["step_ms"] == 1514.0
    assert published["best"]["step_ms"] == 412.0
    assert published["best"]["samples_per_s"] == pytest.approx(32_000 / 412)
    assert published["speedup"] == 3.67
    assert published["speedup_interval"] == [3.52, 3.79]
    verdicts = {(t["tried"], t["verdict"]) for t in published["trials"]}
    assert ("compile", "failed") in verdicts and ("fp16-autocast", "different") in verdicts
    assert published["learning"] == "same"
    assert published["plan"] == "flatout.toml"


def test_nothing_faster_has_no_best_and_no_speedup() -> None:
    for example in (tuned_examples.nothing(), tuned_examples.refuted()):
        published = document.tune_document(example)
        assert published["answer"] == "nothing"
        assert published["best"] is published["speedup"] is published["speedup_interval"] is None
        assert published["plan"] is None and published["boosts"] == []


def test_interrupted_before_the_confirmation() -> None:
    published = document.tune_document(tuned_examples.interrupted())
    assert published["answer"] == "unconfirmed"
    assert published["interrupted"] is True
    assert published["speedup"] == pytest.approx(1514 / 538)
    assert published["speedup_interval"] is None


def test_nan_and_inf_are_null() -> None:
    published = document.as_json({"a": math.nan, "b": (math.inf, -math.inf, 1.5), "c": {2: None}})
    assert published == {"a": None, "b": [None, None, 1.5], "c": {"2": None}}
