from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place


def test_gradients_zeroed_in_place() -> None:
    line = Place("train.py", 83, "train", "optimizer.zero_grad(set_to_none=False)")
    zeros = Operator("aten::_foreach_zero_", Kind.ELEMENTWISE, 1, 0.1, 3.0, (), ("float",), line)
    adding = Operator(
        "aten::add_", Kind.ELEMENTWISE, 161, 0.5, 4.0, (), ("float",), None, backward=True
    )
    job = profile(operators=(zeros, adding))
    finding = only("gradients-zeroed-in-place", job)
    assert (finding.code, finding.where) == ("MEM008", "train.py:83")
    assert saved_ms(finding, job) == pytest.approx(7.0, rel=0.01)
    few = profile(operators=(zeros, dataclasses.replace(adding, calls=8)))
    assert saved_ms(only("gradients-zeroed-in-place", few), few) == pytest.approx(3.0, rel=0.01)
    other = dataclasses.replace(zeros, where=Place("train.py", 9, "train", "mask.zero_()"))
    assert findings("gradients-zeroed-in-place", profile(operators=(other, adding))) == ()
