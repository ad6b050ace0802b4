from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import COLLATE
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator


def test_collate_in_the_main_process() -> None:
    operators = (Operator("aten::copy_", Kind.CONVERSION, 256.0, 24.0, where=COLLATE),)
    profile = made.profile({Kind.WAIT_DATA: 30.0}, operators=operators, gaps=())
    finding = made.only("collate-in-main-process", profile)
    assert (finding.code, finding.where) == ("DATA008", "data.py:52")
    assert "collate_fn=pad_collate" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(24, abs=0.5)
