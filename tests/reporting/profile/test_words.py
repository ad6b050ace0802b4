"""Words of predictions and verdicts: no step that is left reads as if it were saved."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.finding import Finding, Gain
from flatout.nouns.profile import Profiled
from flatout.reporting.profile import words
from reporting import profiled_examples as examples


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Gain(1.21, ""), "1.21x"),
        (Gain(1.21, "", 1.1, 1.3), "1.21x (1.10x to 1.30x)"),
        (Gain(4.0, "", 3.0, 8.0), "4.00x (3.00x to more than 5.00x)"),
        (Gain(8.2, "", 3.0, 20.0), "at most 8.20x"),
        (Gain(1.0, "", 1.0, 1.0), "1.00x"),
    ],
)
def test_a_gain_comes_with_its_interval_and_above_five_as_a_bound(gain: Gain, said: str) -> None:
    assert words.gain(gain) == said


def only(kind: Kind, *findings: Finding) -> Profiled:
    """A step of which this kind is nine tenths."""
    naive = examples.naive()
    other = Kind.REDUCTION if kind is Kind.NORMALISATION else Kind.NORMALISATION
    parts = (Part(kind, 90.0), Part(other, 10.0))
    anatomy = dataclasses.replace(naive.profile.anatomy, step_ms=100.0, parts=parts)
    profile = dataclasses.replace(naive.profile, anatomy=anatomy)
    return dataclasses.replace(naive, profile=profile, findings=findings)


def test_the_headline_calls_no_device_idle_whose_work_was_not_recorded() -> None:
    headline = words.headline(only(Kind.UNRECORDED).profile)
    assert headline == "100 ms per step, 90.0 ms of it not recorded"
    assert words.headline(only(Kind.WAIT_QUEUED).profile).endswith("GPU idle 90%")
