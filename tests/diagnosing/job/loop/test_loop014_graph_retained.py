from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import cpu_profile, findings, only, saved_ms
from diagnosing.job.made_parts import BACKWARD
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator
from machines.healthy import changed


def seeding(source: str) -> tuple[Operator, ...]:
    """What `backward` itself runs in the user's line."""
    line = dataclasses.replace(BACKWARD, source=source)
    ones = Operator("aten::ones_like", Kind.ELEMENTWISE, 2, 0.1, where=line)
    return (*cpu_profile().operators, ones)


def test_graph_retained() -> None:
    once = cpu_profile(operators=seeding("loss.backward(retain_graph=True)"))
    finding = only("graph-retained", once)
    assert (finding.code, finding.where, finding.gain) == ("LOOP014", str(BACKWARD), None)
    twice = changed(once, job__micro_steps=2.0)
    assert saved_ms(only("graph-retained", twice), twice) == pytest.approx(68.0, rel=0.01)
    assert findings("graph-retained", cpu_profile(operators=seeding("loss.backward()"))) == ()
    elsewhere = changed(once, seen__backward_where="train.py:99")
    assert findings("graph-retained", elsewhere) == (), "the line that runs was seen from inside"
