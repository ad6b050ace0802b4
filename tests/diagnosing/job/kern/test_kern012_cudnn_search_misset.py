from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import CONV, FORWARD
from machines.healthy import changed


def test_cudnn_not_searching() -> None:
    job = profile(job__cudnn_benchmark=False)
    finding = only("cudnn-search-misset", job)
    assert (finding.code, finding.where) == ("KERN012", str(CONV))
    assert finding.boost == "cudnn-benchmark"
    for facts in ({"seen__input_shapes": 6}, {"job__deterministic": True}, {"job__hip": True}):
        assert findings("cudnn-search-misset", changed(job, **facts)) == ()


def test_cudnn_searching_again() -> None:
    job = profile(seen__input_shapes=9, operators__1__host_ms=40.0)
    finding = only("cudnn-search-misset", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN012", str(FORWARD), None)
    assert saved_ms(finding, job) == pytest.approx(40.0 - 5.3, rel=0.01)
    assert findings("cudnn-search-misset", profile(seen__input_shapes=2)) == ()
    off = changed(job, job__cudnn_benchmark=False)
    assert findings("cudnn-search-misset", off) == ()
