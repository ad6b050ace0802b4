from __future__ import annotations

import pytest

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import findings, only, saved_ms


def test_checkpoint_each_step() -> None:
    job = calling("torch.save", 0.09)
    finding = only("checkpoint-each-step", job)
    assert (finding.code, finding.where) == ("LOOP008", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(90 * 0.99, rel=0.01)
    assert findings("checkpoint-each-step", calling("torch.save", 0.012, calls=0.125)) == ()
    assert findings("checkpoint-each-step", calling("torch.save", 0.001)) == ()
