from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import at, job
from flatout.nouns.profile import Copy, Sync


def test_small_copies() -> None:
    place = at(83, "lengths = [l.to(device) for l in lengths]")
    one = Copy("HtoD", 40.0, 40 * 64, 0.08, pinned=False, exposed_ms=0.08, where=place)
    profile = job((one,), (Sync("aten::to", 40.0, 1.2, idle_ms=5.0, where=place),))
    finding = made.only("copies-small-and-many", profile)
    assert (finding.code, finding.where) == ("COPY006", "train.py:83")
    assert made.saved_ms(finding, profile) == pytest.approx(5.08 * 39 / 40)
    few = dataclasses.replace(one, calls=4.0, bytes=256)
    assert made.findings("copies-small-and-many", made.changed(profile, copies=(few,))) == ()
    large = dataclasses.replace(one, bytes=40e6)
    assert made.findings("copies-small-and-many", made.changed(profile, copies=(large,))) == ()
