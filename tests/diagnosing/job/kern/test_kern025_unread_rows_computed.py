from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.diagnosing.job import operators
from flatout.nouns.profile import Profile
from flatout_agent import wire

CHECK = "unread-rows-computed"
ROW = wire.UnreadRowsSeen(
    where="model.py:37",
    read_where="train.py:20",
    products=2,
    rows=6400,
    used=64,
    s=0.15,
    flops=0.5,
)


def job(made: Profile, **facts: Any) -> Profile:
    assert made.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, unread_rows=(row,))
    return dataclasses.replace(made, seen=dataclasses.replace(made.seen, flow=flow))


def test_the_last_position_alone_is_used() -> None:
    made = job(cpu_profile())
    finding = only(CHECK, made)
    assert (finding.code, finding.where) == ("KERN025", "model.py:37")
    took = 0.5 * operators.total(made, made.operators)
    assert saved_ms(finding, made) == pytest.approx(took * 0.99, rel=0.01)
    assert "6,400 rows, of which only 64 are used" in finding.title
    assert "train.py:20" in finding.evidence
    assert "head(hidden[:, -1])" in changes(finding)


def test_on_a_gpu_by_the_share_of_operations() -> None:
    made = job(profile())
    took = 0.5 * operators.total(made, operators.products(made))
    assert saved_ms(only(CHECK, made), made) == pytest.approx(took * 0.99, rel=0.06)


def test_little_is_not_told() -> None:
    assert findings(CHECK, job(cpu_profile(), s=0.001)) == ()
    assert findings(CHECK, job(cpu_profile(), rows=0)) == ()
    assert findings(CHECK, cpu_profile()) == ()
