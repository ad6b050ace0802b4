"""An answer that leaves the error at the end unexplained is never sure."""

from __future__ import annotations

import pytest

from flatout.explaining import ending
from flatout.explaining.explaining import explain_text
from flatout.nouns.signature import Confidence

SURE = "RuntimeError: Torch not compiled with CUDA enabled\n"


def trace(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n{error}\n'


def confidence_of(text: str) -> Confidence:
    return explain_text(text).matches[0].confidence


def test_the_error_itself_is_sure() -> None:
    assert confidence_of(trace(SURE)) is Confidence.HIGH


def test_another_error_at_the_end_makes_it_likely_at_most() -> None:
    unknown = trace("study.errors.CohortError: 3 patients are missing from the table")
    assert confidence_of(trace(SURE) + unknown) is Confidence.LIKELY


def test_a_warning_is_hardly_the_cause_of_another_error() -> None:
    warning = "UserWarning: expandable_segments not supported on this platform\n"
    assert confidence_of(warning) is Confidence.HIGH
    unknown = trace("study.errors.CohortError: 3 patients are missing from the table")
    assert confidence_of(warning + unknown) is Confidence.LOW


@pytest.mark.parametrize(
    "end",
    [
        "The above exception was the direct cause of the following exception:\n\n"
        + trace("study.errors.CohortError: 3 patients are missing"),
        trace("subprocess.CalledProcessError: Command '['python']' returned exit status 1."),
        trace("AssertionError"),
        "wandb: run ended\n",
    ],
    ids=["a direct cause", "a report", "no words", "no error"],
)
def test_what_only_passes_it_on_leaves_it_sure(end: str) -> None:
    assert confidence_of(trace(SURE) + end) is Confidence.HIGH


def test_a_text_without_errors_has_none() -> None:
    assert ending.last_error(b"step 1 loss 2.0\n") is None
