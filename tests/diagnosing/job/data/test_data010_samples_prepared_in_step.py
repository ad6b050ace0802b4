from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile

CHECK = "samples-prepared-in-step"


def profile(share: float, **fields: object) -> Profile:
    """The data set takes this share of the step, in a job without workers."""
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        12, HostKind.LIBRARY, share * step_ms, function="Pictures.__getitem__", package="PIL",
        callee="image.convert('RGB')", loading=True, **fields,
    )  # fmt: skip
    return made.changed(sampled.profile(line), job__loaders__0__num_workers=0)


def test_the_line_of_the_data_set_and_what_it_calls() -> None:
    slow = profile(0.5)
    finding = made.only(CHECK, slow)
    assert (finding.code, finding.where) == ("DATA010", "train.py:12")
    assert "Pictures.__getitem__()" in finding.evidence
    assert "Decode once" in finding.cure.text
    step_ms = slow.anatomy.step_ms
    assert made.saved_ms(finding, slow) == pytest.approx(0.45 * step_ms, rel=0.01)


def test_little_or_in_workers() -> None:
    assert made.findings(CHECK, profile(0.04)) == ()
    with_workers = made.changed(profile(0.5), job__loaders__0__num_workers=2)
    assert made.findings(CHECK, with_workers) == ()
    assert made.findings(CHECK, dataclasses.replace(profile(0.5), host=None)) == ()
