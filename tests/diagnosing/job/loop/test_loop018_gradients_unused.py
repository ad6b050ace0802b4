from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout_agent import wire

CHECK = "gradients-unused"
ROW = wire.GradientsSeen(
    "Backbone",
    "train.py:32",
    tensors=8,
    parameters=145_872,
    after_trained=False,
    s=0.15,
    flops=0.6,
)


def flow(row: wire.GradientsSeen | None) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, gradients=row)


def test_a_backbone_that_no_optimizer_has() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP018", "train.py:32")
    assert "Backbone" in finding.title
    assert "145,872" in finding.evidence
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.5 * operators_ms, rel=0.01)
    assert "+ with torch.no_grad():" in changes(finding)
    assert "requires_grad_(False)" in changes(finding)


def test_on_a_gpu_by_its_share_of_the_operations() -> None:
    job = profile(seen__flow=flow(ROW))
    device_ms = 34.6 + 17.3 + 18.0 + 17.0 + 0.1 + 0.1 + 1.5
    assert saved_ms(only(CHECK, job), job) == pytest.approx(0.6 * device_ms, rel=0.05)


def test_the_backward_pass_has_to_go_through_it() -> None:
    job = cpu_profile(seen__flow=flow(dataclasses.replace(ROW, after_trained=True)))
    assert "+ with torch.no_grad():" not in changes(only(CHECK, job))
    scattered = dataclasses.replace(ROW, what="")
    finding = only(CHECK, cpu_profile(seen__flow=flow(scattered)))
    assert "parameters that no optimizer has" in finding.title


def test_little_or_none() -> None:
    little = dataclasses.replace(ROW, s=0.005)
    assert findings(CHECK, cpu_profile(seen__flow=flow(little))) == ()
    assert findings(CHECK, cpu_profile(seen__flow=flow(None))) == ()
    assert findings(CHECK, cpu_profile()) == ()
