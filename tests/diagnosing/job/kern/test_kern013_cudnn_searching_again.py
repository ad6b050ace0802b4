from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import FORWARD
from machines.healthy import changed


def test_cudnn_searching_again() -> None:
    job = profile(seen__input_shapes=9, operators__1__host_ms=40.0)
    finding = only("cudnn-searching-again", job)
    assert (finding.code, finding.where) == ("KERN013", str(FORWARD))
    assert saved_ms(finding, job) == pytest.approx(40.0 - 5.3, rel=0.01)
    assert findings("cudnn-searching-again", profile(seen__input_shapes=2)) == ()
    off = changed(job, job__cudnn_benchmark=False)
    assert findings("cudnn-searching-again", off) == ()
