from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, saved_ms
from diagnosing.job.made_parts import STEP
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Profile
from flatout_agent import wire
from machines.healthy import changed

ROW = wire.EmbeddingSeen(
    name="words.weight",
    lines=("model.py:20",),
    rows=100_000,
    width=64,
    indices=2000,
    touched=1500,
)


def job(*rows: wire.EmbeddingSeen, update: float = 100.0, **facts: Any) -> Profile:
    """A job on the CPU, half of whose parameters is the embedding."""
    optimizer: dict[str, Any] = {"kind": "Adam", "parameters": 12_800_000, "from_torch": True}
    optimizer |= facts
    named = {f"job__optimizers__0__{key}": value for key, value in optimizer.items()}
    made = changed(cpu_profile({Kind.OPTIMIZER: update}), **named)
    assert made.seen is not None
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, embeddings=rows)
    shapes = ("100000x64, 100000x64",)
    fill = Operator("aten::fill_", Kind.ELEMENTWISE, 1, 10.0, shapes=shapes, backward=True)
    other = Operator("aten::fill_", Kind.ELEMENTWISE, 1, 10.0, shapes=("64x64",), backward=True)
    seen = dataclasses.replace(made.seen, flow=flow)
    return dataclasses.replace(made, seen=seen, operators=(fill, other, *made.operators))


def test_a_large_embedding_under_adam() -> None:
    made = job(ROW)
    finding = only("embedding-updated-whole", made)
    assert (finding.code, finding.where) == ("KERN022", str(STEP))
    assert saved_ms(finding, made) == pytest.approx((50 + 10) * (1 - 4 * 0.015), rel=0.01)
    assert "words.weight: 100,000 x 64" in finding.evidence
    assert "model.py:20" in finding.evidence
    assert "sparse=True" in changes(finding)
    assert "SparseAdam([model.words.weight" in changes(finding)


def test_plain_sgd_but_none_with_momentum() -> None:
    made = job(ROW, kind="SGD")
    held = {"seen__optimizer_bytes": 0, "seen__parameter_bytes": 51_200_000}
    assert "optim.SGD(" in changes(only("embedding-updated-whole", changed(made, **held)))
    for bytes_held in (51_200_000, None):
        momentum = changed(made, **held | {"seen__optimizer_bytes": bytes_held})
        assert findings("embedding-updated-whole", momentum) == ()


def test_not_told_where_it_takes_little_or_there_is_no_such_optimizer() -> None:
    assert findings("embedding-updated-whole", job(ROW, update=20.0)) == ()
    assert findings("embedding-updated-whole", job(ROW, kind="LBFGS")) == ()
    assert findings("embedding-updated-whole", job(ROW, from_torch=False)) == ()
    assert findings("embedding-updated-whole", job()) == ()
    ranks = changed(job(ROW), job__world_size=2)
    assert findings("embedding-updated-whole", ranks) == ()
