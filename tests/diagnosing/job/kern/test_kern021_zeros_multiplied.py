from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.diagnosing.job import operators
from flatout.nouns.profile import Profile
from flatout_agent import wire

ROW = wire.ZerosSeen(
    where="model.py:30",
    kind="select",
    shape="1536x1500",
    density=1 / 1500,
    table=True,
    built_where="model.py:29",
    calls=2,
    s=0.09,
    built_s=0.03,
    flops=0.4,
)


def job(made: Profile, **facts: Any) -> Profile:
    """Its operators take 0.3 s of a counted step."""
    assert made.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, zeros=(row,))
    return dataclasses.replace(made, seen=dataclasses.replace(made.seen, flow=flow))


def test_a_one_hot_matrix() -> None:
    made = job(cpu_profile())
    finding = only("zeros-multiplied", made)
    assert (finding.code, finding.where) == ("KERN021", "model.py:30")
    took = operators.total(made, made.operators)
    expected = 0.3 * took * (1 - 10 / 1500) + 0.1 * took
    assert saved_ms(finding, made) == pytest.approx(expected, rel=0.01)
    assert "one-hot" in finding.title
    assert "model.py:29" in finding.evidence
    assert "F.embedding(" in changes(finding)
    assert "index_add_" in changes(only("zeros-multiplied", job(cpu_profile(), kind="add")))


def test_a_sparse_matrix_only_where_it_pays() -> None:
    facts = {"kind": "sparse", "table": False}
    made = job(cpu_profile(), **facts, density=0.0065)
    finding = only("zeros-multiplied", made)
    took = operators.total(made, made.operators)
    assert saved_ms(finding, made) == pytest.approx(0.3 * took * (1 - 0.165), rel=0.01)
    assert "to_sparse_csr" in changes(finding)
    assert "99.4%" in finding.title or "99.3%" in finding.title
    assert findings("zeros-multiplied", job(cpu_profile(), **facts, density=0.03)) == ()
    bag = only("zeros-multiplied", job(cpu_profile(), kind="sparse", density=0.01))
    assert "embedding_bag" in changes(bag)


def test_on_a_gpu_by_the_share_of_operations() -> None:
    made = job(profile(), kind="sparse", density=0.002)
    took = operators.total(made, operators.products(made))
    finding = only("zeros-multiplied", made)
    assert saved_ms(finding, made) == pytest.approx(0.4 * took * 0.8, rel=0.06)
    assert findings("zeros-multiplied", job(profile(), kind="sparse", density=0.015)) == ()


def test_what_takes_little_is_not_told() -> None:
    assert findings("zeros-multiplied", job(cpu_profile(), s=0.009)) == ()
    assert findings("zeros-multiplied", cpu_profile()) == ()
