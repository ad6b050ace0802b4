from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from flatout.nouns.profile import Copy, Place, Sync
from flatout_agent import wire

LEFT = Place("train.py", 90, "train", "scores = scores.cpu()")
BACK = Place("train.py", 93, "train", "weights = weights.to(device)")
FLOW = wire.FlowSeen(
    steps=2,
    operators=300,
    operators_s=0.01,
    returns=(wire.ReturnSeen("train.py:90", "train.py:93", 1.0, 4 << 20),),
)


def test_a_tensor_that_comes_back() -> None:
    job = profile(
        seen__flow=FLOW,
        copies=(
            Copy("DtoH", 1.0, 4 << 20, 0.7, pinned=False, exposed_ms=0.7, where=LEFT),
            Copy("HtoD", 1.0, 4 << 20, 0.8, pinned=False, exposed_ms=0.8, where=BACK),
        ),
        syncs=(Sync("cudaMemcpyAsync", 1.0, 5.0, idle_ms=3.5, where=LEFT),),
    )
    finding = only("copied-there-and-back", job)
    assert (finding.code, finding.where) == ("COPY009", "train.py:90")
    assert "train.py:93" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(5.0, rel=0.01)
    assert findings("copied-there-and-back", profile(seen__flow=FLOW)) == ()
    assert findings("copied-there-and-back", profile()) == ()
