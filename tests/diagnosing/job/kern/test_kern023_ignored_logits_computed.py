from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.diagnosing.job import operators
from flatout.nouns.profile import Profile
from flatout_agent import wire

ROW = wire.IgnoredSeen(
    head_where="model.py:37",
    loss_where="train.py:20",
    classes=4000,
    rows=448,
    used=64,
    ignored=384,
    s=0.15,
    flops=0.5,
)


def job(made: Profile, **facts: Any) -> Profile:
    assert made.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, ignored=(row,))
    return dataclasses.replace(made, seen=dataclasses.replace(made.seen, flow=flow))


def test_masked_positions_alone_are_in_the_loss() -> None:
    made = job(cpu_profile())
    finding = only("ignored-logits-computed", made)
    assert (finding.code, finding.where) == ("KERN023", "model.py:37")
    took = 0.5 * operators.total(made, made.operators)
    assert saved_ms(finding, made) == pytest.approx(took * 384 / 448, rel=0.01)
    assert "logits of 4,000 classes" in finding.title
    assert "384 targets are ignore_index" in finding.evidence
    assert "train.py:20" in finding.evidence
    assert "head(hidden[mask])" in changes(finding)


def test_on_a_gpu_by_the_share_of_operations() -> None:
    made = job(profile())
    took = 0.5 * operators.total(made, operators.products(made))
    finding = only("ignored-logits-computed", made)
    assert saved_ms(finding, made) == pytest.approx(took * 384 / 448, rel=0.06)


def test_few_classes_are_told_only_where_they_take_a_tenth() -> None:
    assert only("ignored-logits-computed", job(cpu_profile(), classes=100))
    assert findings("ignored-logits-computed", job(cpu_profile(), classes=100, s=0.02)) == ()
    assert findings("ignored-logits-computed", job(cpu_profile(), s=0.001)) == ()
    assert findings("ignored-logits-computed", cpu_profile()) == ()


def test_where_no_operator_was_timed_nothing_is_saved() -> None:
    made = job(cpu_profile())
    assert made.seen is not None and made.seen.flow is not None
    seen = dataclasses.replace(made.seen, flow=dataclasses.replace(made.seen.flow, operators_s=0.0))
    assert findings("ignored-logits-computed", dataclasses.replace(made, seen=seen)) == ()
