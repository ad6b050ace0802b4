from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout_agent import wire
from machines.healthy import changed


def test_elementwise_unfused() -> None:
    job = profile({Kind.ELEMENTWISE: 40.0}, job__models__0__compiled=False)
    chain = operator("aten::add_", Kind.ELEMENTWISE, 25.0)
    job = of(job, chain)
    finding = only("elementwise-unfused", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN007", "model.py:30", "compile")
    assert saved_ms(finding, job) == pytest.approx(20.0, rel=0.01)
    assert findings("elementwise-unfused", changed(job, job__models__0__compiled=True)) == ()
    few = profile({Kind.ELEMENTWISE: 5.0}, job__models__0__compiled=False)
    assert findings("elementwise-unfused", of(few, chain)) == ()


def test_random_numbers_of_a_cpu_are_not_fused() -> None:
    job = cpu_profile({Kind.ELEMENTWISE: 200.0}, job__models__0__compiled=False)
    drawn = operator("aten::bernoulli_", Kind.ELEMENTWISE, 190.0)
    assert only("elementwise-unfused", of(job, operator("aten::add", Kind.ELEMENTWISE, 190.0)))
    assert findings("elementwise-unfused", of(job, drawn)) == ()


def test_an_update_by_hand_is_not_compiled_with_the_model() -> None:
    update = wire.UpdateSeen("model.py:30", "step", ("model.py:30",), 48, 600)
    job = profile({Kind.ELEMENTWISE: 40.0}, job__models__0__compiled=False, seen__update=update)
    assert (
        findings("elementwise-unfused", of(job, operator("aten::add_", Kind.ELEMENTWISE, 40.0)))
        == ()
    )
