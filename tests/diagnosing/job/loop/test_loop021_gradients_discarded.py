from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout_agent import wire

CHECK = "gradients-discarded"
ROW = wire.DiscardedSeen("Generator", "train.py:73", "train.py:75", s=0.15, flops=0.6)


def flow(*rows: wire.DiscardedSeen, unused: wire.GradientsSeen | None = None) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, discarded=rows, gradients=unused)


def test_a_pass_goes_through_a_part_for_nothing() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP021", "train.py:73")
    assert "Generator" in finding.title
    assert "train.py:75" in finding.evidence
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.5 * operators_ms, rel=0.01)
    assert "detach()" in changes(finding)


def test_on_a_gpu_by_its_share_of_the_operations() -> None:
    job = profile(seen__flow=flow(ROW))
    device_ms = 34.6 + 17.3 + 18.0 + 17.0 + 0.1 + 0.1 + 1.5
    assert saved_ms(only(CHECK, job), job) == pytest.approx(0.6 * device_ms, rel=0.05)


def test_little_or_none_or_never_trained() -> None:
    little = dataclasses.replace(ROW, s=0.005)
    assert findings(CHECK, cpu_profile(seen__flow=flow(little))) == ()
    unused = wire.GradientsSeen("Backbone", s=0.1)
    assert findings(CHECK, cpu_profile(seen__flow=flow(ROW, unused=unused))) == ()
    assert findings(CHECK, cpu_profile(seen__flow=flow())) == ()
    assert findings(CHECK, cpu_profile()) == ()
