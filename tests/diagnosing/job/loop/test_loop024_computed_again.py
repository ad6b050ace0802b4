from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout_agent import wire

CHECK = "computed-again"
ROW = wire.AgainSeen(
    "Field()", "train.py:31", ("train.py:40", "train.py:44"), 3.0, 2.0, s=0.06, flops=0.3
)


def flow(*rows: wire.AgainSeen) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, again=rows)


def test_a_module_on_the_same_input() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP024", "train.py:31")
    assert "Field is called 3 times" in finding.title
    assert all(line in finding.evidence for line in ROW.lines)
    assert "torch.autograd.grad" not in finding.evidence + finding.cure.text
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.2 * operators_ms, rel=0.01)
    assert "+ output = model(x)  # once" in changes(finding)


def test_on_a_gpu_by_its_share_of_the_operations() -> None:
    job = profile(seen__flow=flow(ROW))
    device_ms = 34.6 + 17.3 + 18.0 + 17.0 + 0.1 + 0.1 + 1.5
    assert saved_ms(only(CHECK, job), job) == pytest.approx(0.3 * device_ms, rel=0.05)


def test_derivatives_with_the_module_or_alone() -> None:
    row = dataclasses.replace(ROW, gradients=2.0)
    finding = only(CHECK, cpu_profile(seen__flow=flow(row)))
    assert "2 of torch.autograd.grad the same derivatives" in finding.evidence
    alone = dataclasses.replace(ROW, what="autograd.grad")
    finding = only(CHECK, cpu_profile(seen__flow=flow(alone)))
    assert "torch.autograd.grad computes the same derivatives 3 times" in finding.title
    assert "torch.autograd.grad" in changes(finding)


def test_gradients_that_backward_leaves_in_grad() -> None:
    row = dataclasses.replace(ROW, what="autograd.grad", calls=1.0, backward_where="train.py:81")
    finding = only(CHECK, cpu_profile(seen__flow=flow(row)))
    assert "backward computes as well" in finding.title
    assert "train.py:81" in finding.evidence
    assert "+ grads = [p.grad for p in parameters]" in changes(finding)


def test_little_or_none() -> None:
    little = dataclasses.replace(ROW, s=0.001)
    assert findings(CHECK, cpu_profile(seen__flow=flow(little))) == ()
    assert findings(CHECK, cpu_profile(seen__flow=flow())) == ()
    assert findings(CHECK, cpu_profile()) == ()
