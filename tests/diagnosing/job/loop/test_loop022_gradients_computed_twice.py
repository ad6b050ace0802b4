from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, saved_ms
from flatout_agent import wire

CHECK = "gradients-computed-twice"
ROW = wire.DerivedAgainSeen("train.py:48", "train.py:81", s=0.09)


def flow(*rows: wire.DerivedAgainSeen) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, derived_again=rows)


def test_gradients_that_backward_leaves_in_grad() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP022", "train.py:48")
    assert "train.py:81" in finding.evidence
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.3 * operators_ms, rel=0.01)
    assert "+ grads = [p.grad for p in parameters]" in changes(finding)


def test_little_or_none() -> None:
    little = dataclasses.replace(ROW, s=0.001)
    assert findings(CHECK, cpu_profile(seen__flow=flow(little))) == ()
    assert findings(CHECK, cpu_profile(seen__flow=flow())) == ()
    assert findings(CHECK, cpu_profile()) == ()
