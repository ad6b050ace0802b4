from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only
from machines.healthy import changed


def test_evaluation_too_often() -> None:
    job = cpu_profile(seen__eval_s=0.6, seen__eval_where="train.py:50")
    finding = only("evaluation-too-often", job)
    assert (finding.code, finding.where) == ("LOOP007", "train.py:50")
    assert "67% of the time" in finding.title
    assert finding.gain.ratio == pytest.approx((300 + 585) / 300, rel=0.01)
    once_an_epoch = changed(job, seen__epochs=2)
    assert findings("evaluation-too-often", once_an_epoch) == ()
    assert findings("evaluation-too-often", cpu_profile(seen__eval_s=0.02)) == ()
