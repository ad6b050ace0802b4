from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout_agent import wire

CALL = wire.UnreadSeen(
    "ResNet()",
    "train.py:90",
    s=0.06,
    flops=0.25,
    same_input=True,
    first_where="train.py:84",
)


def flow(*unread: wire.UnreadSeen) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, unread=unread)


def test_a_second_forward_pass() -> None:
    job = cpu_profile(seen__flow=flow(CALL))
    finding = only("result-unread", job)
    assert (finding.code, finding.where) == ("LOOP016", "train.py:90")
    assert "second time on the same input" in finding.title
    assert "train.py:84" in finding.evidence
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.2 * operators_ms, rel=0.01)
    assert "- again = model(x)" in changes(finding)


def test_on_a_gpu_by_its_share_of_the_operations() -> None:
    job = profile(seen__flow=flow(CALL))
    device_ms = 34.6 + 17.3 + 18.0 + 17.0 + 0.1 + 0.1 + 1.5
    assert saved_ms(only("result-unread", job), job) == pytest.approx(0.25 * device_ms, rel=0.05)


def test_small_operators_are_not_told() -> None:
    small = wire.UnreadSeen("softmax", "train.py:91", s=0.02)
    assert findings("result-unread", cpu_profile(seen__flow=flow(small))) == ()
    large = wire.UnreadSeen("mm, softmax", "train.py:91", s=0.06)
    assert "mm, softmax" in only("result-unread", cpu_profile(seen__flow=flow(large))).title
    assert findings("result-unread", cpu_profile()) == ()


def test_a_function_that_calls_the_model() -> None:
    row = dataclasses.replace(CALL, what="probe()", module="ResNet")
    finding = only("result-unread", cpu_profile(seen__flow=flow(row)))
    assert finding.title == "probe is called and nobody reads the result"
    assert "it calls ResNet; the call at train.py:84 gives the same" in finding.evidence
    assert "- extra = probe(...)" in changes(finding)


def test_derivatives_that_nobody_reads() -> None:
    row = wire.UnreadSeen("autograd.grad", "pde.py:23", calls=2, s=0.02)
    finding = only("result-unread", cpu_profile(seen__flow=flow(row)))
    assert finding.where == "pde.py:23"
    assert "derivatives" in finding.title
    assert "step % 100" in changes(finding)
