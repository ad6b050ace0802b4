"""An answer that leaves the error at the end unexplained is never sure."""

from __future__ import annotations

import pytest

from flatout.explaining.explaining import explain_text
from flatout.nouns.signature import Confidence

SURE = "RuntimeError: Torch not compiled with CUDA enabled\n"
WARNING = "UserWarning: expandable_segments not supported on this platform\n"


def trace(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n{error}\n'


def confidence_of(text: str) -> Confidence:
    return explain_text(text).matches[0].confidence


@pytest.mark.parametrize(
    ("text", "alone", "followed"),
    [
        (trace(SURE), Confidence.HIGH, Confidence.LIKELY),
        (WARNING, Confidence.HIGH, Confidence.LOW),  # hardly the cause of another error
    ],
)
def test_another_error_at_the_end_makes_it_less_sure(
    text: str, alone: Confidence, followed: Confidence
) -> None:
    unknown = trace("study.errors.CohortError: 3 patients are missing from the table")
    assert confidence_of(text) is alone
    assert confidence_of(text + unknown) is followed


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
