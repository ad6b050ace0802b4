from __future__ import annotations

import pytest

from diagnosing.job.made import cpu_profile, findings, only, saved_ms
from diagnosing.job.made_parts import FORWARD
from flatout_agent import wire


def test_forward_unused() -> None:
    job = cpu_profile(seen__unused_forwards=1.0)
    finding = only("forward-unused", job)
    assert (finding.code, finding.where) == ("LOOP012", str(FORWARD))
    forward = 68.0 + 30.0 + 24.0
    assert saved_ms(finding, job) == pytest.approx(forward / 2, rel=0.01)
    assert findings("forward-unused", cpu_profile()) == ()


def test_what_another_check_tells() -> None:
    again = wire.AgainSeen("Net()", unlearned=1.0, s=0.05)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, again=(again,))
    assert findings("forward-unused", cpu_profile(seen__unused_forwards=1.0, seen__flow=flow)) == ()
    assert only("forward-unused", cpu_profile(seen__unused_forwards=2.0, seen__flow=flow))
