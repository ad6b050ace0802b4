from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import WAITING
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place


def test_work_repeated_for_each_sample() -> None:
    line = Place("data.py", 31, "Pictures.__getitem__", "return (pixels - MEAN) / STD, label")
    operators = (
        Operator("aten::div", Kind.ELEMENTWISE, 512.0, 22.0, where=line),
        Operator("aten::sub", Kind.ELEMENTWISE, 256.0, 10.0, where=line),
    )
    profile = made.profile(
        WAITING, operators=operators, job__loaders__0__num_workers=0, job__cores=16
    )
    finding = made.only("work-repeated-for-each-sample", profile)
    assert (finding.code, finding.where) == ("DATA009", "data.py:31")
    assert "32.0 ms a step in __getitem__ for 256 samples" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(32, abs=0.5)
    drawn = (Operator("aten::randn", Kind.OTHER, 256.0, 32.0, where=line),)
    assert (
        made.findings("work-repeated-for-each-sample", made.changed(profile, operators=drawn)) == ()
    )
    once = (Operator("aten::div", Kind.ELEMENTWISE, 2.0, 32.0, where=line),)
    assert (
        made.findings("work-repeated-for-each-sample", made.changed(profile, operators=once)) == ()
    )
