from __future__ import annotations

from diagnosing.job.made import findings, only, profile
from diagnosing.job.made_parts import CONV
from machines.healthy import changed


def test_cudnn_not_searching() -> None:
    job = profile(job__cudnn_benchmark=False)
    finding = only("cudnn-not-searching", job)
    assert (finding.code, finding.where) == ("KERN012", str(CONV))
    assert finding.boost == "cudnn-benchmark"
    for facts in ({"seen__input_shapes": 6}, {"job__deterministic": True}, {"job__hip": True}):
        assert findings("cudnn-not-searching", changed(job, **facts)) == ()
