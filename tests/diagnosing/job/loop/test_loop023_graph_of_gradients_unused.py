from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.finding import Severity
from flatout_agent import wire

CHECK = "graph-of-gradients-unused"
ROW = wire.GraphUnusedSeen("train.py:39", calls=32.0, operators=10_000, s=0.1)


def flow(*rows: wire.GraphUnusedSeen) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, graphs_unused=rows)


def test_a_graph_that_nothing_goes_through() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP023", "train.py:39")
    assert "10,000 operators" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(15.0, rel=0.01)
    assert "- grads = torch.autograd.grad(loss, parameters, create_graph=True)" in changes(finding)
    assert "retain_graph=True" in finding.cure.text


def test_no_more_than_a_part_of_the_passes() -> None:
    job = cpu_profile(seen__flow=flow(dataclasses.replace(ROW, operators=100_000)))
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(only(CHECK, job), job) == pytest.approx(operators_ms / 3 / 4, rel=0.01)


def test_by_backward_with_few_operators() -> None:
    row = dataclasses.replace(ROW, gives=False, operators=20)
    finding = only(CHECK, cpu_profile(seen__flow=flow(row)))
    assert (finding.severity, finding.gain) == (Severity.NOTE, None)
    assert "+ loss.backward()" in changes(finding)


def test_what_it_costs_a_gpu_is_not_known() -> None:
    assert only(CHECK, profile(seen__flow=flow(ROW))).gain is None


def test_none() -> None:
    assert findings(CHECK, cpu_profile(seen__flow=flow())) == ()
    assert findings(CHECK, cpu_profile()) == ()
