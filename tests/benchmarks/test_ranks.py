"""The benchmark of ranks: what it makes of a trial that has measured nothing, or is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def ranks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(root / "benchmarks"), *sys.path])
    import ranks

    return ranks


def test_message_of_a_run_without_a_trial(ranks: Any) -> None:
    said = "noise of the script\nerror: 2 ranks cannot train this: why\nnext: run it alone\n"
    assert ranks.last_message(said) == "2 ranks cannot train this: why"
    assert ranks.last_message("warning: too short\nstep 1\n") == "too short"
    assert ranks.last_message("") == "it ended without a trial"


def test_what_stands_in_the_results_is_not_run_again(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"outcome": "rows", "trial": {"speedup": 1.5}}
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(ranks, "earlier", lambda: {"scripts": {"gan": whole, "plain": {**OLD}}})
    monkeypatch.setattr(ranks, "same", lambda name: {"outcome": f"ran {name}"})
    monkeypatch.setattr(ranks, "tried", lambda name: {"speedup": 1.0})
    monkeypatch.setattr(ranks.record, "write", lambda name, figures: written.append(figures))
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--part", "same", "gan", "plain", "rnn"])
    ranks.main()
    assert written[-1]["scripts"] == {
        "gan": whole,
        "plain": {**OLD, "trial": {"speedup": 1.0}},
        "rnn": {"outcome": "ran rnn", "trial": {"speedup": 1.0}},
    }


OLD = {"outcome": "whole"}
