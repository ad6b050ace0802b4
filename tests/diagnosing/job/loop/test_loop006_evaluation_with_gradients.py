from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only
from machines.healthy import changed


def test_evaluation_with_gradients() -> None:
    job = cpu_profile(
        job__eval_with_grad=True,
        seen__eval_s=0.3,
        seen__eval_where="train.py:50",
    )
    finding = only("evaluation-with-gradients", job)
    assert (finding.code, finding.where) == ("LOOP006", "train.py:50")
    assert finding.boost is None
    assert finding.gain.ratio == pytest.approx((300 + 45) / 300, rel=0.01)
    unseen = changed(job, seen__eval_s=0.0)
    assert only("evaluation-with-gradients", unseen).gain is None
    assert findings("evaluation-with-gradients", cpu_profile()) == ()
