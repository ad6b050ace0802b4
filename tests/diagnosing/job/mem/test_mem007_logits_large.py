from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import FORWARD
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator


def test_logits_large() -> None:
    logits = Operator(
        "aten::_log_softmax", Kind.REDUCTION, 1, 0.1, 9.0, ("32768x50304",), ("float",), FORWARD
    )
    job = profile(operators=(logits,))
    finding = only("logits-large", job)
    assert (finding.code, finding.where) == ("MEM007", str(FORWARD))
    assert "6.1 GiB" in finding.title
    assert saved_ms(finding, job) == pytest.approx(9.0 * 0.4, rel=0.01)
    few = dataclasses.replace(logits, shapes=("32768x1000",))
    assert findings("logits-large", profile(operators=(few,))) == ()
    small = dataclasses.replace(logits, shapes=("512x50304",))
    assert findings("logits-large", profile(operators=(small,))) == ()
