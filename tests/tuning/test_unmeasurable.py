"""What is said of a program that gave no measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.measuring.outcome import Outcome
from flatout.running.one.records import Process
from flatout.tuning import unmeasurable


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.txt"
    path.write_text("sum 1.64\n")
    return path


def outcome(log: Path, **changes: Any) -> Outcome:
    usual: dict[str, Any] = {
        "process": None,
        "measured": None,
        "error": None,
        "torch_seen": True,
        "agent_seen": True,
        "returncode": 0,
        "log": str(log),
        "wall_s": 1.0,
    }
    return Outcome(**{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch_seen": False}, "the program never imported torch"),
        ({}, "the program imported torch but took no optimizer step"),
        (
            {"backwards": 12},
            "the program called backward 12 times, but no optimizer took a step and "
            "no weight was seen to change between these calls",
        ),
        ({"returncode": 3}, "took no optimizer step, exit code 3"),
        ({"returncode": 1, "children": 2}, "took no optimizer step, exit code 1"),
        ({"returncode": -9}, "took no optimizer step; it was killed by signal 9"),
    ],
)
def test_a_program_that_takes_no_step(log: Path, changes: dict[str, Any], message: str) -> None:
    error = unmeasurable.why(outcome(log, **changes))
    assert error.message.endswith(f"{message}\n  | sum 1.64")
    assert error.exit_code == 1
    assert error.next_step == f"run it by itself first: it must train; its whole output: {log}"


def test_a_program_that_asks_for_input_is_not_told_to_train(log: Path) -> None:
    log.write_text("name? Traceback\nEOFError: EOF when reading a line\n")
    error = unmeasurable.why(outcome(log, returncode=1))
    assert error.next_step is not None
    assert "input" in error.next_step
    assert "must train" not in error.next_step


def test_a_program_that_takes_too_few_steps_or_too_long(log: Path) -> None:
    few = unmeasurable.why(outcome(log, process=Process(1), error="2 steps: too few"))
    assert "cannot be measured: 2 steps: too few\n" in few.message
    assert few.next_step == f"its whole output: {log}"
    late = unmeasurable.why(outcome(log, error="stopped after 9 s", late=True))
    assert "took no optimizer step; stopped after 9 s" in late.message
    assert "--budget" in str(late.next_step)


def test_without_the_agent_nothing_is_claimed_of_the_program(log: Path) -> None:
    error = unmeasurable.why(outcome(log, agent_seen=False, torch_seen=False))
    assert "python -I" in error.message
    assert "never imported torch" not in error.message
    assert error.exit_code == 2
