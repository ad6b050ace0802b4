from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import STEP
from flatout.nouns.anatomy import Kind
from machines.healthy import changed


def test_optimizer_unfused() -> None:
    job = profile(
        {Kind.OPTIMIZER: 9.0},
        job__optimizers__0__kind="AdamW",
        job__optimizers__0__fused=None,
        job__optimizers__0__parameters=110_000_000,
    )
    finding = only("optimizer-unfused", job)
    assert (finding.code, finding.where) == ("KERN010", str(STEP))
    assert finding.boost == "fused-optimizer"
    needed = 110e6 * 4 * 7 / (1620e9 * 0.7) * 1e3
    assert saved_ms(finding, job) == pytest.approx(9.0 - needed, rel=0.01)
    for facts in ({"fused": True}, {"from_torch": False}, {"kind": "LBFGS"}):
        named = {f"job__optimizers__0__{key}": value for key, value in facts.items()}
        assert findings("optimizer-unfused", changed(job, **named)) == ()
    quick = profile({Kind.OPTIMIZER: 0.4}, job__optimizers__0__fused=None)
    assert findings("optimizer-unfused", quick) == ()
