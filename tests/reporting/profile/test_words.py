"""Words of predictions and verdicts: no step that is left reads as if it were saved."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.finding import Cure, Finding, Gain, Severity
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


def test_the_step_is_said_before_and_after() -> None:
    profiled = examples.naive()
    first = profiled.findings[0]
    assert words.after(first, profiled.profile) == "412 -> 180 ms per step, 2.29x (2.09x to 2.54x)"
    assert "about" not in words.verdict(profiled)
    bound = dataclasses.replace(first, gain=Gain(10.0, ""))
    assert words.after(bound, profiled.profile).endswith("41.2 ms per step at best, at most 10.0x")
    unknown = dataclasses.replace(first, gain=None)
    assert words.after(unknown, profiled.profile) == "not predicted"


def only(kind: Kind, *findings: Finding) -> Profiled:
    """A step of which this kind is nine tenths."""
    naive = examples.naive()
    other = Kind.REDUCTION if kind is Kind.NORMALISATION else Kind.NORMALISATION
    parts = (Part(kind, 90.0), Part(other, 10.0))
    anatomy = dataclasses.replace(naive.profile.anatomy, step_ms=100.0, parts=parts)
    profile = dataclasses.replace(naive.profile, anatomy=anatomy)
    return dataclasses.replace(naive, profile=profile, findings=findings)


def test_no_finding_is_never_said_without_the_largest_part() -> None:
    for kind in Kind:
        verdict = words.verdict(only(kind))
        assert f"its largest part is {words.kind(kind)}, 90%: " in verdict
    assert words.verdict(only(Kind.MATMUL)).endswith("90%: work that no check objects to")


def test_what_is_unexplained_is_pointed_to() -> None:
    finding = Finding("HOST016", "time-unexplained", Severity.WARNING, "title", "", Cure("cure"))
    verdict = words.verdict(only(Kind.UNRECORDED, finding))
    assert verdict.endswith("HOST016 says what is known of the time without a cause")


def test_the_headline_calls_no_device_idle_whose_work_was_not_recorded() -> None:
    headline = words.headline(only(Kind.UNRECORDED).profile)
    assert headline == "100 ms per step, 90.0 ms of it not recorded"
    assert words.headline(only(Kind.WAIT_QUEUED).profile).endswith("GPU idle 90%")
